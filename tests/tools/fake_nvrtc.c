// A stand-in for NVRTC whose every compilation fails, built once for each way: FAKE_OLD is a version
// of long ago that has no more than its version, FAKE_NO_BUILTINS finds no libnvrtc-builtins,
// FAKE_NO_TARGET does not know the architecture.

#include <stddef.h>
#include <string.h>

#if defined FAKE_OLD
enum { major_version = 11, minor_version = 8 };
#elif defined FAKE_NO_BUILTINS
enum { major_version = 13, minor_version = 0, failure = 7 };
static const char error[] = "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
static const char log_text[] =
    "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n"
    "  Make sure that libnvrtc-builtins.so.13.0 is installed correctly.";
#elif defined FAKE_NO_TARGET
enum { major_version = 12, minor_version = 4, failure = 5 };
static const char error[] = "NVRTC_ERROR_INVALID_OPTION";
static const char log_text[] = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
#endif

int nvrtcVersion(int* major, int* minor) {
  *major = major_version;
  *minor = minor_version;
  return 0;
}

#ifndef FAKE_OLD
const char* nvrtcGetErrorString(int status) {
  return status == failure ? error : "NVRTC_SUCCESS";
}
int nvrtcCreateProgram(void** program, const char* source, const char* name, int n,
                       const char* const* headers, const char* const* names) {
  (void)source, (void)name, (void)n, (void)headers, (void)names;
  static int any;
  *program = &any;
  return 0;
}
int nvrtcDestroyProgram(void** program) {
  *program = NULL;
  return 0;
}
int nvrtcCompileProgram(void* program, int n, const char* const* options) {
  (void)program, (void)n, (void)options;
  return failure;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) {
  (void)program;
  *size = sizeof log_text;
  return 0;
}
int nvrtcGetProgramLog(void* program, char* log) {
  (void)program;
  memcpy(log, log_text, sizeof log_text);
  return 0;
}
// A failed compilation has no code: NVRTC answers a size of 0 and success.
int nvrtcGetCUBINSize(void* program, size_t* size) {
  (void)program;
  *size = 0;
  return 0;
}
int nvrtcGetCUBIN(void* program, char* cubin) {
  (void)program, (void)cubin;
  return 0;
}
int nvrtcGetPTXSize(void* program, size_t* size) { return nvrtcGetCUBINSize(program, size); }
int nvrtcGetPTX(void* program, char* ptx) { return nvrtcGetCUBIN(program, ptx); }
#endif
