/* Windows' bcryptprimitives.dll, which Wine 8 lacks: the random numbers of Rust's standard library. */
#include <windows.h>

#include <ntsecapi.h>

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) { return RtlGenRandom(data, (ULONG)size); }
