#pragma once

#include <cstdint>
#include <string>

#include "models/synth/shapes.h"
#include "runtime/engine.h"

namespace quern::tools {

/// A synthetic model file that lives in memory alone, under a name by which this process can open
/// it. What has been opened stays when the object goes.
class MemoryModel {
 public:
  /// Throws Error (`does_not_fit`) where the machine has less free memory than the file is large.
  MemoryModel(const synth::Shape& shape, const synth::Mix& mix, uint32_t threads,
              const Progress& progress);
  ~MemoryModel();
  MemoryModel(const MemoryModel&) = delete;
  MemoryModel& operator=(const MemoryModel&) = delete;

  std::string path() const;
  double made_ms() const { return made_ms_; }

 private:
  int descriptor_ = -1;
  double made_ms_ = 0;
};

}  // namespace quern::tools
