// The gradients of deformable attention, and a call that is refused.

#include <fourtap.h>
#include <stdio.h>

static fourtap_tensor tensor(uint32_t dtype, void *data, uint32_t rank, const int64_t *shape) {
    return (fourtap_tensor){.struct_size = sizeof(fourtap_tensor), .dtype = dtype, .device = FOURTAP_DEVICE_CPU,
                            .rank = rank, .data = data, .shape = shape};
}

int main(void) {
    if (fourtap_abi_version() != FOURTAP_ABI_VERSION) {
        fprintf(stderr, "compiled for version %d of the ABI, found %u\n", FOURTAP_ABI_VERSION, fourtap_abi_version());
        return 1;
    }
    // Two levels, of one and two pixels; one head of one channel; one query with one point per level.
    int64_t levels[] = {1, 1, 1, 2}, starts[] = {0, 1};
    float value[] = {8, 10, 20}, locations[] = {0.5f, 0.5f, 0.5f, 0.5f}, weights[] = {0.25f, 0.75f};
    float grad_out[] = {1}, grad_value[3], grad_weights[2];

    const int64_t value_shape[] = {1, 3, 1, 1}, weights_shape[] = {1, 1, 1, 2, 1};
    fourtap_tensor value_tensor = tensor(FOURTAP_DTYPE_F32, value, 4, value_shape);
    fourtap_tensor levels_tensor = tensor(FOURTAP_DTYPE_I64, levels, 2, (int64_t[]){2, 2});
    fourtap_tensor starts_tensor = tensor(FOURTAP_DTYPE_I64, starts, 1, (int64_t[]){2});
    fourtap_tensor locations_tensor = tensor(FOURTAP_DTYPE_F32, locations, 6, (int64_t[]){1, 1, 1, 2, 1, 2});
    fourtap_tensor weights_tensor = tensor(FOURTAP_DTYPE_F32, weights, 5, weights_shape);
    fourtap_tensor grad_out_tensor = tensor(FOURTAP_DTYPE_F32, grad_out, 3, (int64_t[]){1, 1, 1});
    fourtap_tensor grad_value_tensor = tensor(FOURTAP_DTYPE_F32, grad_value, 4, value_shape);
    fourtap_tensor grad_weights_tensor = tensor(FOURTAP_DTYPE_F32, grad_weights, 5, weights_shape);

    fourtap_msda_inputs inputs = {
        .struct_size = sizeof inputs,
        .value = &value_tensor,
        .spatial_shapes = &levels_tensor,
        .level_start_index = &starts_tensor,
        .sampling_locations = &locations_tensor,
        .attention_weights = &weights_tensor,
    };
    // Locations get no gradient.
    fourtap_msda_gradients gradients = {
        .struct_size = sizeof gradients,
        .value = &grad_value_tensor,
        .attention_weights = &grad_weights_tensor,
    };
    if (fourtap_msda_backward(&inputs, &grad_out_tensor, &gradients, NULL) != FOURTAP_STATUS_OK) {
        fprintf(stderr, "%s\n", fourtap_last_error_message());
        return 1;
    }
    printf("%g %g %g\n", grad_value[0], grad_value[1], grad_value[2]); // 0.25 0.375 0.375
    printf("%g %g\n", grad_weights[0], grad_weights[1]);               // 8 15

    starts[1] = 2;
    if (fourtap_msda_backward(&inputs, &grad_out_tensor, &gradients, NULL) != FOURTAP_STATUS_INVALID_ARGUMENT)
        return 1;
    printf("%s\n", fourtap_last_error_message());
    return 0;
}
