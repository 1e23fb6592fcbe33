// fourtap: multi-scale deformable attention and dense attention for CPUs and CUDA devices.
// https://github.com/fourtap/fourtap, docs/c.md
//
// Every function that can fail returns a fourtap_status; fourtap_last_error_message() says why, for each thread. Descriptors begin with
// their own size, so that programs work with later versions of the library: set struct_size, and set to zero what is not used. NULL is for
// what is optional. Functions may be called from any number of threads at once. Tensors stay the caller's, and outputs may share no
// memory with other tensors of the call. On the CPU a function returns when the result is there, on CUDA once the work is queued on the
// stream.
//
// A complete program:
//     #include <fourtap.h>
//     #include <stdio.h>
//
//     static fourtap_tensor tensor(uint32_t dtype, void *data, uint32_t rank, const int64_t *shape) {
//         return (fourtap_tensor){.struct_size = sizeof(fourtap_tensor), .dtype = dtype, .device = FOURTAP_DEVICE_CPU,
//                                 .rank = rank, .data = data, .shape = shape};
//     }
//
//     int main(void) {
//         // One image with one level, a row of two pixels; one head of one channel; one query halfway between the pixels.
//         int64_t levels[] = {1, 2};
//         float value[] = {10, 20}, location[] = {0.5f, 0.5f}, weight[] = {1}, out[1];
//
//         fourtap_tensor value_tensor = tensor(FOURTAP_DTYPE_F32, value, 4, (int64_t[]){1, 2, 1, 1});
//         fourtap_tensor levels_tensor = tensor(FOURTAP_DTYPE_I64, levels, 2, (int64_t[]){1, 2});
//         fourtap_tensor location_tensor = tensor(FOURTAP_DTYPE_F32, location, 6, (int64_t[]){1, 1, 1, 1, 1, 2});
//         fourtap_tensor weight_tensor = tensor(FOURTAP_DTYPE_F32, weight, 5, (int64_t[]){1, 1, 1, 1, 1});
//         fourtap_tensor out_tensor = tensor(FOURTAP_DTYPE_F32, out, 3, (int64_t[]){1, 1, 1});
//
//         fourtap_msda_inputs inputs = {
//             .struct_size = sizeof inputs,
//             .value = &value_tensor,
//             .spatial_shapes = &levels_tensor,
//             .sampling_locations = &location_tensor,
//             .attention_weights = &weight_tensor,
//         };
//         if (fourtap_msda_forward(&inputs, &out_tensor, NULL) != FOURTAP_STATUS_OK) {
//             fprintf(stderr, "%s\n", fourtap_last_error_message());
//             return 1;
//         }
//         printf("%g\n", out[0]); // 15
//         return 0;
//     }

#ifndef FOURTAP_H
#define FOURTAP_H

#include <stddef.h>
#include <stdint.h>

/// The version of the binary interface that this header describes; fourtap_abi_version() is that of the loaded library. Functions
/// and fields are added without a new version; when one is changed or removed, this number and the library's soname change.
#define FOURTAP_ABI_VERSION 1

/// The largest number of axes of a tensor.
#define FOURTAP_MAX_RANK 6

/// A flag: gradients on CUDA are bitwise reproducible also for small problems in f32, which use atomic additions otherwise.
#define FOURTAP_DETERMINISTIC 1

/// How a call ended. fourtap_last_error_message() says more.
typedef enum {
  /// The result is computed; on CUDA, its computation is queued on the stream.
  FOURTAP_STATUS_OK = 0,
  /// A descriptor, tensor or number does not fit the call. Nothing was written.
  FOURTAP_STATUS_INVALID_ARGUMENT = 1,
  /// The device cannot compute this call. Nothing was written.
  FOURTAP_STATUS_UNSUPPORTED = 2,
  /// There is not enough memory for a workspace. Nothing was written.
  FOURTAP_STATUS_OUT_OF_MEMORY = 3,
  /// The CUDA driver, the compilation of a kernel or the device failed.
  FOURTAP_STATUS_CUDA = 4,
  /// A tuning table, which FOURTAP_TUNE or the user's settings name, cannot be read. Nothing was written.
  FOURTAP_STATUS_TUNING_TABLE = 5,
  /// A fault in this library; outputs may be incomplete.
  FOURTAP_STATUS_INTERNAL = 6,
} fourtap_status;

/// Where the diagonal of causal masks and windows lies when there are not as many queries as keys.
typedef enum {
  /// The last query is at the last key, as in decoding with a KV cache: FlashAttention.
  FOURTAP_ALIGNMENT_BOTTOM_RIGHT = 0,
  /// Query 0 is at key 0: is_causal of PyTorch's scaled_dot_product_attention.
  FOURTAP_ALIGNMENT_TOP_LEFT = 1,
} fourtap_alignment;

/// What a tensor's elements are.
typedef enum {
  /// IEEE half precision, 16 bits.
  FOURTAP_DTYPE_F16 = 1,
  /// The upper half of a float, 16 bits.
  FOURTAP_DTYPE_BF16 = 2,
  /// float.
  FOURTAP_DTYPE_F32 = 3,
  /// double.
  FOURTAP_DTYPE_F64 = 4,
  /// One byte, 0 for false: masks.
  FOURTAP_DTYPE_BOOL = 5,
  /// int32_t: sizes of levels in host memory.
  FOURTAP_DTYPE_I32 = 6,
  /// int64_t: sizes of levels.
  FOURTAP_DTYPE_I64 = 7,
} fourtap_dtype;

/// Whose memory a tensor is in. The numbers are those of DLPack.
typedef enum {
  /// The host's.
  FOURTAP_DEVICE_CPU = 1,
  /// A CUDA device's.
  FOURTAP_DEVICE_CUDA = 2,
} fourtap_device;

/// How a point reads the pixels around it.
typedef enum {
  /// Four neighbours, those outside the level counting as zero.
  FOURTAP_INTERPOLATION_BILINEAR = 0,
  /// The nearest pixel, on the border if that is outside: the "discrete" method of RT-DETRv2.
  FOURTAP_INTERPOLATION_NEAREST = 1,
} fourtap_interpolation;

/// A strided tensor in memory that the caller owns. The library keeps no pointer after a call, but on CUDA the memory must live until
/// the queued work is done.
typedef struct {
  /// sizeof(fourtap_tensor).
  uint32_t struct_size;
  /// What the elements are, a fourtap_dtype.
  uint32_t dtype;
  /// Whose memory it is in, a fourtap_device.
  uint32_t device;
  /// Which of the CUDA devices, from 0; ignored for the host.
  int32_t device_index;
  /// Number of axes, at most FOURTAP_MAX_RANK.
  uint32_t rank;
  /// The first element. May be NULL if the tensor has no elements.
  void *data;
  /// The sizes of the axes, `rank` numbers.
  const int64_t *shape;
  /// How many elements lie from one index of an axis to the next, `rank` numbers; may be 0 or negative. NULL for row-major elements
  /// without gaps.
  const int64_t *strides;
} fourtap_tensor;

/// The inputs of multi-scale deformable attention: N images of S pixels in L levels, M heads of D channels, Q queries of P points per
/// level.
typedef struct {
  /// sizeof(fourtap_msda_inputs).
  uint32_t struct_size;
  /// `[N, S, M, D]`, f16, bf16, f32 or f64.
  const fourtap_tensor *value;
  /// `[L, 2]`, (height, width) of each level: i64 on the tensors' device, or i64 or i32 in host memory.
  const fourtap_tensor *spatial_shapes;
  /// `[L]`, the first pixel of each level on axis S, beside spatial_shapes; NULL: each begins where the one before it ends.
  const fourtap_tensor *level_start_index;
  /// `[N, Q, M, L, P, 2]`, (x, y): 0 is the left or top edge of the level, 1 the right or bottom. f32, or as value.
  const fourtap_tensor *sampling_locations;
  /// `[N, Q, M, L, P]`, f32, or as value.
  const fourtap_tensor *attention_weights;
} fourtap_msda_inputs;

/// How a call is computed. Instead of a pointer to this a function takes NULL, which is the same as all zeros. Calls on the CPU use
/// none of it: they run on all processors, or on as many threads as the environment variable RAYON_NUM_THREADS says.
typedef struct {
  /// sizeof(fourtap_options).
  uint32_t struct_size;
  /// 0 or FOURTAP_DETERMINISTIC.
  uint32_t flags;
  /// The CUDA stream the work is queued on, a CUstream or cudaStream_t of the tensors' device; NULL is the default stream.
  void *stream;
  /// Device memory that the call may use until its work is done, as much as the function's `_workspace_size` says, at an address that is
  /// a multiple of 256. NULL: what is needed is allocated on the stream.
  void *workspace;
  /// Bytes there.
  size_t workspace_size;
} fourtap_options;

/// What fourtap_msda_backward() writes. A gradient that is NULL is not computed.
typedef struct {
  /// sizeof(fourtap_msda_gradients).
  uint32_t struct_size;
  /// As value.
  const fourtap_tensor *value;
  /// As sampling_locations.
  const fourtap_tensor *sampling_locations;
  /// As attention_weights.
  const fourtap_tensor *attention_weights;
} fourtap_msda_gradients;

/// The inputs of deformable attention from projections: reference points, offsets and logits instead of locations and weights. K is the
/// number of points of all levels.
typedef struct {
  /// sizeof(fourtap_projections_inputs).
  uint32_t struct_size;
  /// A fourtap_interpolation; 0 is bilinear.
  uint32_t interpolation;
  /// `[N, S, M, D]`, f16, bf16, f32 or f64.
  const fourtap_tensor *value;
  /// `[L, 2]`, (height, width) of each level: i64 on the tensors' device, or i64 or i32 in host memory.
  const fourtap_tensor *spatial_shapes;
  /// `[L]`, the first pixel of each level on axis S, beside spatial_shapes; NULL: each begins where the one before it ends.
  const fourtap_tensor *level_start_index;
  /// `[N, Q, L, P, 2]`, points (x, y) from 0 to 1 over the image, or `[N, Q, L, P, 4]`, boxes (x, y, width, height). Axis P may be left out,
  /// and any axis may have size 1, which stands for every index. f32, or as value.
  const fourtap_tensor *reference_points;
  /// `[N, Q, M, K, 2]`, level by level. f32, or as value.
  const fourtap_tensor *sampling_offsets;
  /// `[N, Q, M, K]`, before the softmax over K. f32, or as value.
  const fourtap_tensor *attention_logits;
  /// `[N, S]`, bool, true for pixels that count as zero; NULL: none.
  const fourtap_tensor *value_mask;
  /// How many points each level has: one number for all levels, or L numbers.
  const int64_t *points_per_level;
  /// The part of a box's width and height that an offset of 1 stands for: one number for all levels, or L numbers. NULL: 0.5 / P. Only for
  /// boxes.
  const double *box_scale;
  /// How many numbers are at points_per_level.
  uint32_t points_per_level_count;
  /// How many numbers are at box_scale.
  uint32_t box_scale_count;
  /// Not 0 if value holds zeros where value_mask is true, see fourtap_zero_pixels(): it is then read as it is, which is faster.
  uint32_t mask_is_applied;
} fourtap_projections_inputs;

/// What fourtap_projections_backward() writes. A gradient that is NULL is not computed.
typedef struct {
  /// sizeof(fourtap_projections_gradients).
  uint32_t struct_size;
  /// As value.
  const fourtap_tensor *value;
  /// As reference_points; summed over whatever an axis of size 1 stands for.
  const fourtap_tensor *reference_points;
  /// As sampling_offsets.
  const fourtap_tensor *sampling_offsets;
  /// As attention_logits.
  const fourtap_tensor *attention_logits;
} fourtap_projections_gradients;

/// The inputs of dense attention, softmax(scale * Q K^T + mask) V. All tensors have one dtype, f16, bf16, f32 or f64. These are logical
/// shapes: tensors stored as `[B, S, H, D]` are described by their strides.
typedef struct {
  /// sizeof(fourtap_dense_inputs).
  uint32_t struct_size;
  /// A fourtap_alignment; 0 is bottom right.
  uint32_t alignment;
  /// `[B, Hq, Sq, D]`.
  const fourtap_tensor *query;
  /// `[B, Hk, Sk, D]`; Hk divides Hq.
  const fourtap_tensor *key;
  /// `[B, Hk, Sk, Dv]`.
  const fourtap_tensor *value;
  /// Broadcasts to `[B, Hq, Sq, Sk]`: bool, true where a query sees a key, or a bias that is added to the scaled logits, of the dtype of the
  /// others or f32. NULL: none.
  const fourtap_tensor *attn_mask;
  /// The scale of Q K^T; NULL: 1 / sqrt(D).
  const double *scale;
  /// How many keys before the diagonal a query sees; NULL: all.
  const int64_t *window_left;
  /// How many keys after the diagonal a query sees; NULL: all.
  const int64_t *window_right;
  /// Not 0: a query sees no key after the diagonal.
  uint32_t is_causal;
} fourtap_dense_inputs;

/// What dense attention writes.
typedef struct {
  /// sizeof(fourtap_dense_outputs).
  uint32_t struct_size;
  /// `[B, Hq, Sq, Dv]`.
  const fourtap_tensor *out;
  /// `[B, Hq, Sq]`, the log-sum-exp (LSE) of the logits, natural logarithm: f32, or f64 where the others are. NULL: not computed.
  const fourtap_tensor *lse;
} fourtap_dense_outputs;

/// What fourtap_dense_backward() writes. A gradient that is NULL is not computed.
typedef struct {
  /// sizeof(fourtap_dense_gradients).
  uint32_t struct_size;
  /// As query.
  const fourtap_tensor *query;
  /// As key.
  const fourtap_tensor *key;
  /// As value.
  const fourtap_tensor *value;
  /// As attn_mask, if that is a bias: summed over what it broadcasts.
  const fourtap_tensor *bias;
} fourtap_dense_gradients;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The version of the binary interface of the loaded library: a program that was compiled with FOURTAP_ABI_VERSION works with it if
/// the two are equal.
uint32_t fourtap_abi_version(void);

/// The version of the loaded library, such as "0.1.0".
const char *fourtap_version(void);

/// Why the last call of this thread that did not return FOURTAP_STATUS_OK failed: the argument, what was expected and what was found.
/// Empty if none has. Valid until the thread's next call that fails.
const char *fourtap_last_error_message(void);

/// Multi-scale deformable attention: writes out, `[N, Q, M * D]` of the dtype of value.
fourtap_status fourtap_msda_forward(const fourtap_msda_inputs *inputs,
                                    const fourtap_tensor *out,
                                    const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_msda_forward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_msda_forward_workspace_size(const fourtap_msda_inputs *inputs,
                                                   const fourtap_tensor *out,
                                                   const fourtap_options *options,
                                                   size_t *bytes);

/// The gradients of multi-scale deformable attention, given grad_out, `[N, Q, M * D]` of the dtype of value.
fourtap_status fourtap_msda_backward(const fourtap_msda_inputs *inputs,
                                     const fourtap_tensor *grad_out,
                                     const fourtap_msda_gradients *gradients,
                                     const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_msda_backward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_msda_backward_workspace_size(const fourtap_msda_inputs *inputs,
                                                    const fourtap_tensor *grad_out,
                                                    const fourtap_msda_gradients *gradients,
                                                    const fourtap_options *options,
                                                    size_t *bytes);

/// Deformable attention from projections: writes out, `[N, Q, M * D]` of the dtype of value.
fourtap_status fourtap_projections_forward(const fourtap_projections_inputs *inputs,
                                           const fourtap_tensor *out,
                                           const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_projections_forward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_projections_forward_workspace_size(const fourtap_projections_inputs *inputs,
                                                          const fourtap_tensor *out,
                                                          const fourtap_options *options,
                                                          size_t *bytes);

/// The gradients of deformable attention from projections, given grad_out, `[N, Q, M * D]` of the dtype of value.
fourtap_status fourtap_projections_backward(const fourtap_projections_inputs *inputs,
                                            const fourtap_tensor *grad_out,
                                            const fourtap_projections_gradients *gradients,
                                            const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_projections_backward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_projections_backward_workspace_size(const fourtap_projections_inputs *inputs,
                                                           const fourtap_tensor *grad_out,
                                                           const fourtap_projections_gradients *gradients,
                                                           const fourtap_options *options,
                                                           size_t *bytes);

/// Writes zeros to the pixels of value, `[N, S, M, D]`, where mask, `[N, S]` of bool, is true. Needs no workspace.
fourtap_status fourtap_zero_pixels(const fourtap_tensor *value,
                                   const fourtap_tensor *mask,
                                   const fourtap_options *options);

/// Dense attention. A query that sees no key gets an output of 0 and an lse of minus infinity.
fourtap_status fourtap_dense_forward(const fourtap_dense_inputs *inputs,
                                     const fourtap_dense_outputs *outputs,
                                     const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_dense_forward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_dense_forward_workspace_size(const fourtap_dense_inputs *inputs,
                                                    const fourtap_dense_outputs *outputs,
                                                    const fourtap_options *options,
                                                    size_t *bytes);

/// The gradients of dense attention, given what fourtap_dense_forward() wrote, out and lse, and grad_out, `[B, Hq, Sq, Dv]` of the dtype of
/// the others. On a CUDA device in f16 and bf16; f32 and f64 end in FOURTAP_STATUS_UNSUPPORTED there.
fourtap_status fourtap_dense_backward(const fourtap_dense_inputs *inputs,
                                      const fourtap_dense_outputs *results,
                                      const fourtap_tensor *grad_out,
                                      const fourtap_dense_gradients *gradients,
                                      const fourtap_options *options);

/// Writes to *bytes how large a workspace fourtap_dense_backward() needs with the same arguments: 0 on the CPU.
fourtap_status fourtap_dense_backward_workspace_size(const fourtap_dense_inputs *inputs,
                                                     const fourtap_dense_outputs *results,
                                                     const fourtap_tensor *grad_out,
                                                     const fourtap_dense_gradients *gradients,
                                                     const fourtap_options *options,
                                                     size_t *bytes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOURTAP_H */
