# Libraries that Quern stands on. All are Debian packages (tools/lib/packages.sh lists them).

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(LLVM 19.1 REQUIRED CONFIG PATHS /usr/lib/llvm-19 /usr/lib/llvm-19/lib/cmake/llvm)
find_program(QUERN_CLANG NAMES clang++-19 REQUIRED
  DOC "clang 19, which compiles the CPU templates to bitcode")

# quern_llvm: LLVM's headers and either the shared library or the static components.
add_library(quern_llvm INTERFACE)
target_include_directories(quern_llvm SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
target_compile_definitions(quern_llvm INTERFACE ${LLVM_DEFINITIONS_LIST})
if(QUERN_PORTABLE)
  llvm_map_components_to_libnames(QUERN_LLVM_LIBS orcjit passes bitreader bitwriter irreader linker
    x86codegen x86asmparser x86desc x86info x86disassembler target)
  target_link_libraries(quern_llvm INTERFACE ${QUERN_LLVM_LIBS})
else()
  target_link_libraries(quern_llvm INTERFACE LLVM)
endif()
