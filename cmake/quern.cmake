# Flags that every target of the project shares, and the one way to declare a library of it.

add_library(quern_flags INTERFACE)
target_include_directories(quern_flags INTERFACE ${CMAKE_SOURCE_DIR})
# -ffp-contract=off: the bits of f32 code are part of the contract (DESIGN section 4, rule 4).
target_compile_options(quern_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror -ffp-contract=off)
if(QUERN_SANITIZE)
  target_compile_options(quern_flags INTERFACE -fsanitize=${QUERN_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -O1 -g1)  # instrumented code takes GCC a minute a file at -O2 -g
  target_link_options(quern_flags INTERFACE -fsanitize=${QUERN_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's flow warnings are false on instrumented code (its manual says so of -fsanitize); the release
    # build keeps them.
    target_compile_options(quern_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict
      -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
  endif()
endif()
if(QUERN_PORTABLE)
  target_link_options(quern_flags INTERFACE -static-libstdc++ -static-libgcc -s)
endif()

# quern_library(NAME [SOURCES...] DEPENDS [libraries...]): a static library with the project's flags.
function(quern_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC quern_flags ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
endfunction()
