# The device headers inside the binary.
#
# quern_device_headers(OUTPUT HEADERS a.cuh ...) writes a C++ file that holds each header's name and text (paths
# relative to the source tree, as they are included). Name and text stand in one zero-separated string, so that
# both can be handed to NVRTC as they are.

if(CMAKE_SCRIPT_MODE_FILE)
  set(body "#include \"compiler/cuda/embedded_headers.h\"\n\n#include <array>\n\nnamespace quern::cuda {\nnamespace {\n\n")
  set(rows "")
  set(index 0)
  string(REPLACE "|" ";" HEADERS "${HEADERS}")
  foreach(header IN LISTS HEADERS)
    file(READ ${ROOT}/${header} text HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," text "${text}")
    string(HEX "${header}" name)
    string(LENGTH "${header}" name_length)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," name "${name}")
    math(EXPR text_at "${name_length} + 1")
    string(APPEND body "constexpr char header_${index}[] = {${name}0,${text}0};\n")
    string(APPEND rows "    {header_${index}, header_${index} + ${text_at}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  string(APPEND body "\nconstexpr std::array<EmbeddedHeader, ${index}> table = {{\n${rows}}};\n\n}  // namespace\n\n"
    "std::span<const EmbeddedHeader> embedded_headers() { return table; }\n\n}  // namespace quern::cuda\n")
  file(WRITE ${OUTPUT} "${body}")
  return()
endif()

set(QUERN_DEVICE_HEADERS_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(quern_device_headers output)
  cmake_parse_arguments(ARG "" "" "HEADERS" ${ARGN})
  set(paths ${ARG_HEADERS})
  list(TRANSFORM paths PREPEND ${CMAKE_SOURCE_DIR}/)
  string(REPLACE ";" "|" joined "${ARG_HEADERS}")
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} "-DHEADERS=${joined}" -DOUTPUT=${output}
      -P ${QUERN_DEVICE_HEADERS_SCRIPT}
    DEPENDS ${paths} ${QUERN_DEVICE_HEADERS_SCRIPT} VERBATIM
    COMMENT "Embedding the device headers")
endfunction()
