#include <gtest/gtest.h>

#include <llvm/Object/ELFObjectFile.h>
#include <llvm/Object/ObjectFile.h>
#include <llvm/Support/MemoryBuffer.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "models/error.h"
#include "tests/compiler/cpu/launch.h"
#include "tests/compiler/cpu/sample_specs.h"

namespace quern::cpu {
namespace {

/// Names of an object's symbols, defined ones that it exports or those that it leaves undefined.
std::set<std::string> symbols(const CompiledKernel& kernel, bool undefined) {
  const llvm::MemoryBufferRef buffer(
      llvm::StringRef(reinterpret_cast<const char*>(kernel.code.data()), kernel.code.size()),
      "kernel");
  auto object = llvm::cantFail(llvm::object::ObjectFile::createObjectFile(buffer));
  std::set<std::string> names;
  for (const llvm::object::SymbolRef& symbol : object->symbols()) {
    const uint32_t flags = llvm::cantFail(symbol.getFlags());
    const bool is_undefined = (flags & llvm::object::SymbolRef::SF_Undefined) != 0;
    const bool is_global = (flags & llvm::object::SymbolRef::SF_Global) != 0;
    const std::string name = llvm::cantFail(symbol.getName()).str();
    if (is_global && is_undefined == undefined && !name.empty()) names.insert(name);
  }
  return names;
}

TEST(Jit, objects_call_nothing_but_memory_functions_and_export_one_symbol) {
  for (const char* target : {"native", "x86-64-v3", "x86-64-v4"}) {
    for (const spec::AnySpec& spec : sample_specs()) {
      const CompiledKernel kernel = compile_kernel(spec, resolve_target(target));
      for (const std::string& name : symbols(kernel, true)) {
        EXPECT_TRUE(name == "memcpy" || name == "memset" || name == "_GLOBAL_OFFSET_TABLE_")
            << spec_family(spec) << " for " << target << " calls " << name;
      }
      EXPECT_EQ(symbols(kernel, false), std::set<std::string>{kernel_symbol}) << spec_family(spec);
    }
  }
}

TEST(Jit, the_same_spec_gives_the_same_bytes_also_from_many_threads) {
  const Target target = resolve_target("native");
  const spec::AnySpec spec = sample_specs()[0];
  const CompiledKernel first = compile_kernel(spec, target);
  std::vector<CompiledKernel> others(3);
  std::vector<std::thread> threads;
  for (CompiledKernel& kernel : others) {
    threads.emplace_back([&kernel, &spec, &target] { kernel = compile_kernel(spec, target); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CompiledKernel& kernel : others) {
    EXPECT_EQ(kernel.code, first.code);
    EXPECT_EQ(kernel.key.fields, first.key.fields);
  }
}

TEST(Jit, keys_differ_by_family_spec_and_target_and_name_no_place_or_time) {
  std::set<std::string> digests;
  size_t count = 0;
  for (const char* target : {"native", "x86-64-v3", "x86-64-v4"}) {
    for (const spec::AnySpec& spec : sample_specs()) {
      const KernelKey key = kernel_key(spec, resolve_target(target));
      EXPECT_EQ(key.digest(), kernel_key(spec, resolve_target(target)).digest());
      digests.insert(key.digest());
      ++count;
      for (const auto& [name, value] : key.fields) {
        EXPECT_EQ(value.find("/tmp"), std::string::npos) << name;
        EXPECT_EQ(value.find("/work"), std::string::npos) << name;
        EXPECT_FALSE(value.empty()) << name;
      }
    }
  }
  EXPECT_EQ(digests.size(), count);
}

TEST(Jit, every_field_of_a_spec_is_in_its_key) {
  const Target target = resolve_target("x86-64-v3");
  const spec::GemmSpec base{.segments = {{spec::QuantType::q4_k, 64}}, .k = 256};
  std::vector<spec::GemmSpec> changed(10, base);
  changed[0].segments[0].rows = 80;
  changed[1].segments[0].type = spec::QuantType::q5_k;
  changed[2].k = 512;
  changed[3].epilogue = spec::Epilogue::residual;
  changed[4].bias = 1;
  changed[5].softcap = 30;
  changed[6].tile_tokens = 4;
  changed[7].tile_cells = 2;
  changed[8].k_block = 128;
  changed[9].gemv_max_tokens = 3;
  std::set<std::string> digests = {kernel_key(base, target).digest()};
  for (const spec::GemmSpec& spec : changed) digests.insert(kernel_key(spec, target).digest());
  EXPECT_EQ(digests.size(), changed.size() + 1);
}

TEST(Jit, vectors_are_as_wide_as_the_target_has_them) {
  const spec::AnySpec spec = sample_specs()[0];
  const std::string wide = kernel_assembly(spec, resolve_target("x86-64-v4"));
  const std::string narrow = kernel_assembly(spec, resolve_target("x86-64-v3"));
  EXPECT_NE(wide.find("%zmm"), std::string::npos);
  EXPECT_EQ(narrow.find("%zmm"), std::string::npos);
  EXPECT_NE(narrow.find("%ymm"), std::string::npos);
}

TEST(Jit, ir_shows_the_specialised_entry_point_alone) {
  const std::string ir = kernel_ir(spec::GatherSpec{.width = 48}, resolve_target("native"));
  EXPECT_NE(ir.find("define"), std::string::npos);
  EXPECT_NE(ir.find(kernel_symbol), std::string::npos);
  EXPECT_EQ(ir.find("@quern_spec = external"), std::string::npos);
}

TEST(Jit, unknown_targets_are_refused_and_missing_features_named) {
  try {
    resolve_target("sparc");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(error.what()).find("sparc"), std::string::npos);
  }
  EXPECT_TRUE(can_run(resolve_target("native")));
  Target other = resolve_target("native");
  other.features += ",+no-such-feature";
  std::string missing;
  EXPECT_FALSE(can_run(other, &missing));
  EXPECT_EQ(missing, "no-such-feature");
  other.kind = "cuda";
  EXPECT_FALSE(can_run(other));
}

TEST(Jit, damaged_objects_are_refused) {
  KernelLoader loader;
  CompiledKernel kernel = compile_kernel(spec::GatherSpec{.width = 48}, resolve_target("native"));
  CompiledKernel empty = kernel;
  empty.code.clear();
  EXPECT_THROW(loader.load(empty), Error);
  CompiledKernel garbage = kernel;
  garbage.code.assign(100, std::byte{7});
  EXPECT_THROW(loader.load(garbage), Error);
  CompiledKernel unnamed = kernel;
  unnamed.symbol = "no_such_symbol";
  EXPECT_THROW(loader.load(unnamed), Error);
  EXPECT_NE(loader.load(kernel), nullptr) << "the loader survives refused objects";
}

}  // namespace
}  // namespace quern::cpu
