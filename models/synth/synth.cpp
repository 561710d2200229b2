#include "models/synth/synth.h"

#include "models/synth/pieces.h"

namespace quern::synth {

void write_synthetic(const Shape& shape, const Mix& mix, const SynthOptions& options,
                     const gguf::TensorToWrite::Sink& sink) {
  const std::vector<SynthTensor> tensors = tensors_of(shape, mix);
  const uint64_t total = total_bytes(tensors);
  uint64_t done = 0;
  Pieces pieces(tensors, options.seed, options.threads);
  std::vector<gguf::TensorToWrite> to_write;
  to_write.reserve(tensors.size());
  for (const SynthTensor& tensor : tensors) {
    const auto fill = [&, bytes = tensor.bytes()](const gguf::TensorToWrite::Sink& pass) {
      for (uint64_t passed = 0; passed < bytes;) {
        const std::span<const std::byte> piece = pieces.next();
        pass(piece);
        passed += piece.size();
        done += piece.size();
        if (options.progress) options.progress(done, total);
      }
    };
    to_write.push_back({tensor.name, tensor.shape, tensor.type, fill});
  }
  gguf::write_stream(sink, metadata_of(shape), to_write);
}

}  // namespace quern::synth
