#include <fourtap.h>
#include <stdio.h>

static fourtap_tensor tensor(uint32_t dtype, void *data, uint32_t rank, const int64_t *shape) {
    return (fourtap_tensor){.struct_size = sizeof(fourtap_tensor), .dtype = dtype, .device = FOURTAP_DEVICE_CPU,
                            .rank = rank, .data = data, .shape = shape};
}

int main(void) {
    // One image with one level, a row of two pixels; one head of one channel; one query halfway between the pixels.
    int64_t levels[] = {1, 2};
    float value[] = {10, 20}, location[] = {0.5f, 0.5f}, weight[] = {1}, out[1];

    fourtap_tensor value_tensor = tensor(FOURTAP_DTYPE_F32, value, 4, (int64_t[]){1, 2, 1, 1});
    fourtap_tensor levels_tensor = tensor(FOURTAP_DTYPE_I64, levels, 2, (int64_t[]){1, 2});
    fourtap_tensor location_tensor = tensor(FOURTAP_DTYPE_F32, location, 6, (int64_t[]){1, 1, 1, 1, 1, 2});
    fourtap_tensor weight_tensor = tensor(FOURTAP_DTYPE_F32, weight, 5, (int64_t[]){1, 1, 1, 1, 1});
    fourtap_tensor out_tensor = tensor(FOURTAP_DTYPE_F32, out, 3, (int64_t[]){1, 1, 1});

    fourtap_msda_inputs inputs = {
        .struct_size = sizeof inputs,
        .value = &value_tensor,
        .spatial_shapes = &levels_tensor,
        .sampling_locations = &location_tensor,
        .attention_weights = &weight_tensor,
    };
    if (fourtap_msda_forward(&inputs, &out_tensor, NULL) != FOURTAP_STATUS_OK) {
        fprintf(stderr, "%s\n", fourtap_last_error_message());
        return 1;
    }
    printf("%g\n", out[0]); // 15
    return 0;
}
