# quern_native_template(TEST FAMILY MUTANTS none gate_raw ...): compiles templates/cpu/<FAMILY>.cpp with
# clang to an object of TEST for each mutant (templates/cpu/mutants.h), its entry point named
# quern_<FAMILY>_<mutant> and its spec, read at run time, quern_<FAMILY>_<mutant>_spec. The namespace
# quern::cpu is renamed too: otherwise the linker would keep one object's inline functions for all.
function(quern_native_template test family)
  cmake_parse_arguments(ARG "" "" "MUTANTS" ${ARGN})
  file(GLOB headers CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/templates/cpu/*.h ${CMAKE_SOURCE_DIR}/templates/spec/*.h)
  foreach(mutant IN LISTS ARG_MUTANTS)
    set(symbol quern_${family}_${mutant})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${QUERN_CLANG} -std=c++20 -O2 -march=x86-64-v3 -fPIC -ffreestanding -ffp-contract=off
        -fno-math-errno -Wno-psabi -Wno-pass-failed -fno-exceptions -fno-rtti -nostdinc++
        -fvisibility=hidden -DQUERN_MUTANT=${mutant} -Dcpu=${symbol}_cpu
        -Dquern_kernel=${symbol} -Dquern_spec=${symbol}_spec
        -Dquern_vector_registers=${symbol}_registers
        -I. -c templates/cpu/${family}.cpp -o ${object}
      DEPENDS ${CMAKE_SOURCE_DIR}/templates/cpu/${family}.cpp ${headers}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM
      COMMENT "Native template ${family}, mutant ${mutant}")
    target_sources(${test} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  endforeach()
endfunction()
