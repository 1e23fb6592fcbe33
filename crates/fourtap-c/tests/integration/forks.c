// Forks after a call that ran on several threads, and calls again in the child, which has none of them.

#define _POSIX_C_SOURCE 200809L
#include <fourtap.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIXELS = 64, QUERIES = 400, HEADS = 8, CHANNELS = 32, POINTS = 4 };

static float value[PIXELS * HEADS * CHANNELS], locations[QUERIES * HEADS * POINTS * 2], weights[QUERIES * HEADS * POINTS];
static float outs[2][QUERIES * HEADS * CHANNELS];

static fourtap_tensor tensor(uint32_t dtype, void *data, uint32_t rank, const int64_t *shape) {
    return (fourtap_tensor){.struct_size = sizeof(fourtap_tensor), .dtype = dtype, .device = FOURTAP_DEVICE_CPU,
                            .rank = rank, .data = data, .shape = shape};
}

static int call(float *out) {
    int64_t levels[] = {8, 8};
    fourtap_tensor value_tensor = tensor(FOURTAP_DTYPE_F32, value, 4, (int64_t[]){1, PIXELS, HEADS, CHANNELS});
    fourtap_tensor levels_tensor = tensor(FOURTAP_DTYPE_I64, levels, 2, (int64_t[]){1, 2});
    fourtap_tensor locations_tensor =
        tensor(FOURTAP_DTYPE_F32, locations, 6, (int64_t[]){1, QUERIES, HEADS, 1, POINTS, 2});
    fourtap_tensor weights_tensor = tensor(FOURTAP_DTYPE_F32, weights, 5, (int64_t[]){1, QUERIES, HEADS, 1, POINTS});
    fourtap_tensor out_tensor = tensor(FOURTAP_DTYPE_F32, out, 3, (int64_t[]){1, QUERIES, HEADS * CHANNELS});
    fourtap_msda_inputs inputs = {
        .struct_size = sizeof inputs,
        .value = &value_tensor,
        .spatial_shapes = &levels_tensor,
        .sampling_locations = &locations_tensor,
        .attention_weights = &weights_tensor,
    };
    return fourtap_msda_forward(&inputs, &out_tensor, NULL) == FOURTAP_STATUS_OK;
}

int main(void) {
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) value[i] = (float)(i % 97);
    for (size_t i = 0; i < sizeof locations / sizeof *locations; i++) locations[i] = (float)(i % 61) / 61;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) weights[i] = (float)(i % 13) / 13;
    if (!call(outs[0])) return 1;

    pid_t child = fork();
    if (child == 0) {
        alarm(60); // what hangs ends, and is seen
        _exit(call(outs[1]) && memcmp(outs[0], outs[1], sizeof outs[0]) == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    puts(status == 0 ? "the child computed the same" : "the child failed or hung");
    return 0;
}
