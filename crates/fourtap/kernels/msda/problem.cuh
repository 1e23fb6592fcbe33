// What the launcher hands to every kernel of the operator. Mirrored field by field in src/cuda/msda/arguments.rs.

// LEVEL_CAPACITY: how many levels there is room for in the arguments.

struct HostLevel {
    int width, height;
    i64 start;
};

struct Arguments {
    const void *value;     // [N, S, M, D]
    const void *locations; // [N, Q, M, L, P, 2]
    const void *weights;   // [N, Q, M, L, P]
    void *out;             // [N, Q, M*D]
    // Levels in device memory, int64 as frameworks hold them, or null: then `host_levels` count. Without starts, each
    // level begins where the one before it ends.
    const i64 *shapes, *starts;
    // In elements.
    i64 value_strides[4], location_strides[6], weight_strides[5], out_strides[3];
    i64 images, pixels, queries;
    int heads, channels, levels, points;
    HostLevel host_levels[LEVEL_CAPACITY];
};

struct Level {
    int width, height;
    i64 start;
};

// Level `l`. What comes from device memory nobody has checked: a level that does not lie inside S is treated as empty,
// so that nothing outside `value` is ever read.
static __device__ Level level_of(const Arguments &arguments, int l) {
    if (!arguments.shapes) {
        const HostLevel &host = arguments.host_levels[l];
        return {host.width, host.height, host.start};
    }
    const i64 height = arguments.shapes[2 * l], width = arguments.shapes[2 * l + 1];
    i64 start = 0;
    if (arguments.starts) {
        start = arguments.starts[l];
    } else {
#pragma unroll 1 // it is done once, and each copy of it makes every kernel larger
        for (int before = 0; before < l; before++) {
            // Wraps around for nonsense, which the test below then meets.
            start += static_cast<i64>(static_cast<u64>(arguments.shapes[2 * before]) *
                                      static_cast<u64>(arguments.shapes[2 * before + 1]));
        }
    }
    const i64 most = 0x7fffffff;
    const bool sound = height > 0 && width > 0 && height <= most && width <= most && start >= 0 &&
                       start <= arguments.pixels && height * width <= arguments.pixels - start;
    if (!sound) {
        return {0, 0, 0};
    }
    return {static_cast<int>(width), static_cast<int>(height), start};
}
