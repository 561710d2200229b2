// A driver library of long ago: it starts, and has none of the functions that came later.

extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) {
  return 0;
}

extern "C" __attribute__((visibility("default"))) int cuDriverGetVersion(int* version) {
  *version = 2020;
  return 0;
}
