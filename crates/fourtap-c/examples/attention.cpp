// Dense attention and attention from projections in C++: descriptors over vectors, errors as exceptions.

#include <fourtap.h>

#include <cstdio>
#include <stdexcept>
#include <vector>

class Tensor {
  public:
    Tensor(std::vector<int64_t> shape, std::vector<float> numbers) : shape_(std::move(shape)), numbers_(std::move(numbers)) {
        describe(FOURTAP_DTYPE_F32, numbers_.data());
    }
    Tensor(std::vector<int64_t> shape, std::vector<int64_t> integers) : shape_(std::move(shape)), integers_(std::move(integers)) {
        describe(FOURTAP_DTYPE_I64, integers_.data());
    }
    // The descriptor points into this object.
    Tensor(const Tensor &) = delete;
    Tensor &operator=(const Tensor &) = delete;

    const fourtap_tensor *descriptor() const { return &descriptor_; }
    float operator[](std::size_t index) const { return numbers_[index]; }

  private:
    void describe(fourtap_dtype dtype, void *data) {
        descriptor_.struct_size = sizeof descriptor_;
        descriptor_.dtype = dtype;
        descriptor_.device = FOURTAP_DEVICE_CPU;
        descriptor_.rank = static_cast<uint32_t>(shape_.size());
        descriptor_.data = data;
        descriptor_.shape = shape_.data();
    }

    std::vector<int64_t> shape_;
    std::vector<float> numbers_;
    std::vector<int64_t> integers_;
    fourtap_tensor descriptor_{};
};

static void check(fourtap_status status) {
    if (status != FOURTAP_STATUS_OK) throw std::runtime_error(fourtap_last_error_message());
}

static void dense_attention() {
    // Two queries and two keys; a query of 0 gives equal weight to all keys it sees.
    Tensor query({1, 1, 2, 1}, std::vector<float>{0, 0}), key({1, 1, 2, 1}, std::vector<float>{1, 2});
    Tensor value({1, 1, 2, 1}, std::vector<float>{10, 20});
    Tensor out({1, 1, 2, 1}, std::vector<float>(2)), lse({1, 1, 2}, std::vector<float>(2));

    fourtap_dense_inputs inputs{};
    inputs.struct_size = sizeof inputs;
    inputs.query = query.descriptor();
    inputs.key = key.descriptor();
    inputs.value = value.descriptor();
    inputs.is_causal = 1;
    fourtap_dense_outputs outputs{};
    outputs.struct_size = sizeof outputs;
    outputs.out = out.descriptor();
    outputs.lse = lse.descriptor();
    check(fourtap_dense_forward(&inputs, &outputs, nullptr));
    std::printf("%g %g, log-sum-exp %.3f %.3f\n", out[0], out[1], lse[0], lse[1]); // 10 15, log-sum-exp 0.000 0.693
}

static void attention_from_projections() {
    // A row of two pixels; two points, half a pixel to the left and to the right of the centre, with equal logits.
    Tensor value({1, 2, 1, 1}, std::vector<float>{10, 20}), levels({1, 2}, std::vector<int64_t>{1, 2});
    Tensor references({1, 1, 1, 2}, std::vector<float>{0.5f, 0.5f});
    Tensor offsets({1, 1, 1, 2, 2}, std::vector<float>{-0.5f, 0, 0.5f, 0}), logits({1, 1, 1, 2}, std::vector<float>{0, 0});
    Tensor out({1, 1, 1}, std::vector<float>(1));
    const int64_t points = 2;

    fourtap_projections_inputs inputs{};
    inputs.struct_size = sizeof inputs;
    inputs.value = value.descriptor();
    inputs.spatial_shapes = levels.descriptor();
    inputs.reference_points = references.descriptor();
    inputs.sampling_offsets = offsets.descriptor();
    inputs.attention_logits = logits.descriptor();
    inputs.points_per_level = &points;
    inputs.points_per_level_count = 1;
    std::size_t bytes = 1;
    check(fourtap_projections_forward_workspace_size(&inputs, out.descriptor(), nullptr, &bytes));
    check(fourtap_projections_forward(&inputs, out.descriptor(), nullptr));
    std::printf("%g, workspace of %zu bytes\n", out[0], bytes); // 15, workspace of 0 bytes

    inputs.interpolation = 7;
    try {
        check(fourtap_projections_forward(&inputs, out.descriptor(), nullptr));
    } catch (const std::runtime_error &error) {
        std::printf("%s\n", error.what());
    }
}

int main() {
    dense_attention();
    attention_from_projections();
}
