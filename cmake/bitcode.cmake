# The CPU templates as LLVM bitcode inside a library.
#
# quern_bitcode_library(NAME FAMILIES gemm norm ... EARLY gemm ...) compiles
# templates/cpu/<family>.cpp to bitcode with
# clang 19 and embeds each in the static library NAME, together with a table of all (templates/cpu/
# bitcode.h). Only the spec is missing from the bitcode: the CPU back end sets it when it compiles a
# kernel, and every optimisation happens then. The AVX-512 base serves the front end alone (16 lanes
# pass between functions as one value); the back end replaces each function's target by the kernel's.
# The sources are named relative to the source tree, so that the bytes, and with them the kernels'
# keys, do not depend on where the tree lies.

set(QUERN_BITCODE_FLAGS
  -std=c++20 --target=x86_64-unknown-linux-gnu -march=x86-64-v4
  -ffreestanding -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti -fno-stack-protector
  -fno-threadsafe-statics -fno-asynchronous-unwind-tables -fno-unwind-tables -fno-ident
  -fvisibility=hidden -nostdinc++ -Wall -Wextra -Wshadow -Werror)

# Families as clang leaves them, all optimisation to come; and those whose inner loops are templates of
# type and tile, whole without the spec: optimising these here takes two thirds off every kernel's
# compile time. Loops whose trip counts the spec fixes are left alone.
set(QUERN_BITCODE_LATE -O3 -Xclang -disable-llvm-passes)
set(QUERN_BITCODE_EARLY -O1 -fno-vectorize -fno-slp-vectorize -fno-unroll-loops)

function(quern_bitcode_library name)
  cmake_parse_arguments(ARG "" "" "FAMILIES;EARLY" ${ARGN})
  file(GLOB headers CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/templates/cpu/*.h ${CMAKE_SOURCE_DIR}/templates/spec/*.h)
  set(sources "")
  set(rows "")
  set(declarations "")
  foreach(family IN LISTS ARG_FAMILIES)
    set(bitcode ${CMAKE_CURRENT_BINARY_DIR}/${family}.bc)
    set(embedded ${CMAKE_CURRENT_BINARY_DIR}/${family}.bitcode.cpp)
    set(level ${QUERN_BITCODE_LATE})
    if(family IN_LIST ARG_EARLY)
      set(level ${QUERN_BITCODE_EARLY})
    endif()
    add_custom_command(OUTPUT ${bitcode}
      COMMAND ${QUERN_CLANG} ${QUERN_BITCODE_FLAGS} ${level} -I. -c -emit-llvm templates/cpu/${family}.cpp
        -o ${bitcode}
      DEPENDS ${CMAKE_SOURCE_DIR}/templates/cpu/${family}.cpp ${headers}
      WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM
      COMMENT "Bitcode of the CPU template ${family}")
    add_custom_command(OUTPUT ${embedded}
      COMMAND ${CMAKE_COMMAND} -DFAMILY=${family} -DBITCODE=${bitcode} -DOUTPUT=${embedded}
        -P ${CMAKE_SOURCE_DIR}/cmake/embed_bitcode.cmake
      DEPENDS ${bitcode} ${CMAKE_SOURCE_DIR}/cmake/embed_bitcode.cmake VERBATIM)
    list(APPEND sources ${embedded})
    string(APPEND declarations "extern const BitcodeRow bitcode_${family};\n")
    string(APPEND rows "    bitcode_${family},\n")
  endforeach()

  set(abi_text "")
  foreach(header IN ITEMS abi.h)
    file(READ ${CMAKE_SOURCE_DIR}/templates/cpu/${header} text)
    string(APPEND abi_text "${text}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      ${CMAKE_SOURCE_DIR}/templates/cpu/${header})
  endforeach()
  string(SHA256 QUERN_ABI_DIGEST "${abi_text}")
  string(SHA256 QUERN_BITCODE_OPTIONS_DIGEST "${QUERN_BITCODE_FLAGS}")
  set(QUERN_BITCODE_DECLARATIONS "${declarations}")
  set(QUERN_BITCODE_ROWS "${rows}")
  configure_file(${CMAKE_SOURCE_DIR}/cmake/bitcode_table.cpp.in
    ${CMAKE_CURRENT_BINARY_DIR}/bitcode_table.cpp @ONLY)
  quern_library(${name} SOURCES ${CMAKE_CURRENT_BINARY_DIR}/bitcode_table.cpp ${sources})
endfunction()
