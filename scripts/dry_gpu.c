/* What stands in for CUDA and cuBLAS in scripts/dry_gpu.sh: one H100 whose memory is address space that nobody wrote to, whose kernels and
   products are noted down and not run, and whose events tell the host's time. Loaded before PyTorch's libraries, which ask here first, and
   in place of the driver, which Triton asks. Only what PyTorch's training, and Triton, call. */

#define _GNU_SOURCE
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MEMORY (79ull << 30) /* bytes */
#define SHARED 232448        /* bytes of a program */
#define SAME(type, name, ...) type name(__VA_ARGS__) { return 0; }
#define MAKE(type, name, handle, ...) type name(handle *made, ##__VA_ARGS__) { *made = calloc(1, 512); return 0; }

static FILE *launches(void) {
    static FILE *file;
    if (!file) {
        const char *name = getenv("LAUNCHES");
        file = fopen(name ? name : "/dev/null", "a");
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

/* Memory: pages that are never written are never there. */
static struct { char *begin; size_t size; } blocks[1 << 16];
static int block_count;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int on_gpu(const void *place) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (int n = 0; n < block_count && !found; n++)
        found = (char *)place >= blocks[n].begin && (char *)place < blocks[n].begin + blocks[n].size;
    pthread_mutex_unlock(&lock);
    return found;
}

static cudaError_t take(void **made, size_t size) {
    cudaError_t error = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    if (used + size <= MEMORY && block_count < 1 << 16) {
        *made = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (*made != MAP_FAILED) {
            blocks[block_count].begin = *made, blocks[block_count++].size = size, used += size;
            error = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static cudaError_t give(void *place) {
    pthread_mutex_lock(&lock);
    for (int n = 0; n < block_count; n++)
        if (blocks[n].begin == place) {
            munmap(place, blocks[n].size), used -= blocks[n].size, blocks[n] = blocks[--block_count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t copy(void *to, const void *from, size_t size) {
    int down = on_gpu(from), up = on_gpu(to);
    fprintf(launches(), "copy\t%s\t%zu\n", down ? up ? "inside" : "down" : "up", size);
    if (down && size == 1)
        *(char *)to = 1; /* whatever the question: "all are finite", "any is not zero" */
    else if (!down || !up)
        memcpy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **made, size_t size) { return take(made, size); }
cudaError_t cudaMallocAsync(void **made, size_t size, cudaStream_t stream) { return take(made, size); }
cudaError_t cudaFree(void *place) { return give(place); }
cudaError_t cudaFreeAsync(void *place, cudaStream_t stream) { return give(place); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { *all = MEMORY, *left = MEMORY - used; return 0; }
cudaError_t cudaHostAlloc(void **made, size_t size, unsigned flags) { *made = aligned_alloc(4096, (size + 4095) / 4096 * 4096); return 0; }
cudaError_t cudaFreeHost(void *place) { free(place); return 0; }
SAME(cudaError_t, cudaHostRegister, void *place, size_t size, unsigned flags)
SAME(cudaError_t, cudaHostUnregister, void *place)
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) { return copy(to, from, size); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy(to, from, size);
}
SAME(cudaError_t, cudaMemset, void *place, int value, size_t size)
SAME(cudaError_t, cudaMemsetAsync, void *place, int value, size_t size, cudaStream_t stream)
SAME(cudaError_t, cudaMemcpyToSymbol, const void *to, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind)
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *place) {
    memset(found, 0, sizeof *found);
    found->type = on_gpu(place) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    found->devicePointer = (void *)place;
    return 0;
}

/* The device */
static int attribute(int which) {
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return SHARED;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return SHARED + 1024;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 50 << 20;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 2619000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 5120;
    default: return 1;
    }
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "H100, dry");
    found->totalGlobalMem = MEMORY, found->major = 9, found->multiProcessorCount = 132, found->warpSize = 32;
    found->sharedMemPerBlock = 49152, found->sharedMemPerBlockOptin = SHARED, found->sharedMemPerMultiprocessor = SHARED + 1024;
    found->regsPerBlock = found->regsPerMultiprocessor = 65536, found->l2CacheSize = 50 << 20, found->memoryBusWidth = 5120;
    found->maxThreadsPerBlock = 1024, found->maxThreadsPerMultiProcessor = 2048, found->maxBlocksPerMultiProcessor = 32;
    found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024, found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 2147483647, found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->textureAlignment = 512, found->unifiedAddressing = 1;
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *found, enum cudaDeviceAttr which, int device) { *found = attribute(which); return 0; }
cudaError_t cudaGetDeviceCount(int *found) { *found = 1; return 0; }
cudaError_t cudaGetDevice(int *found) { *found = 0; return 0; }
cudaError_t cudaDriverGetVersion(int *found) { *found = 13000; return 0; }
cudaError_t cudaRuntimeGetVersion(int *found) { *found = 13000; return 0; }
cudaError_t cudaDeviceGetPCIBusId(char *found, int size, int device) { snprintf(found, size, "0000:00:00.0"); return 0; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) { *least = 0, *most = -5; return 0; }
cudaError_t cudaDeviceCanAccessPeer(int *found, int one, int other) { *found = 0; return 0; }
SAME(cudaError_t, cudaDeviceEnablePeerAccess, int device, unsigned flags)
SAME(cudaError_t, cudaSetDevice, int device)
SAME(cudaError_t, cudaDeviceSynchronize, void)
SAME(cudaError_t, cudaGetLastError, void)
SAME(cudaError_t, cudaPeekAtLastError, void)
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    *found = dlsym(RTLD_DEFAULT, name);
    if (result)
        *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *found ? cudaSuccess : cudaErrorSymbolNotFound;
}

/* Streams, events, graphs */
static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + 1e-6 * now.tv_nsec;
}
MAKE(cudaError_t, cudaEventCreate, cudaEvent_t)
MAKE(cudaError_t, cudaEventCreateWithFlags, cudaEvent_t, unsigned flags)
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return 0; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { *(double *)event = milliseconds(); return 0; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventElapsedTime(float *found, cudaEvent_t from, cudaEvent_t to) { *found = *(double *)to - *(double *)from; return 0; }
SAME(cudaError_t, cudaEventQuery, cudaEvent_t event)
SAME(cudaError_t, cudaEventSynchronize, cudaEvent_t event)
MAKE(cudaError_t, cudaStreamCreateWithPriority, cudaStream_t, unsigned flags, int priority)
SAME(cudaError_t, cudaStreamDestroy, cudaStream_t stream)
SAME(cudaError_t, cudaStreamQuery, cudaStream_t stream)
SAME(cudaError_t, cudaStreamSynchronize, cudaStream_t stream)
SAME(cudaError_t, cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
SAME(cudaError_t, cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *found) {
    *found = cudaStreamCaptureStatusNone;
    return 0;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *found, unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *count) {
    return cudaStreamIsCapturing(stream, found);
}

/* Kernels: PyTorch's by the names that they register under, Triton's by those of their modules. */
static struct { const void *function; const char *name; } known[1 << 18];
static int known_count;

void __cudaRegisterFunction(void **handle, const char *function, char *stub, const char *name, int limit, uint3 *thread, uint3 *block,
                            dim3 *threads, dim3 *blocks_, int *size) {
    static void (*registered)(void **, const char *, char *, const char *, int, uint3 *, uint3 *, dim3 *, dim3 *, int *);
    if (!registered)
        registered = dlsym(RTLD_NEXT, "__cudaRegisterFunction");
    if (known_count < 1 << 18)
        known[known_count].function = function, known[known_count++].name = name;
    registered(handle, function, stub, name, limit, thread, block, threads, blocks_, size);
}
static const char *name_of(const void *function) {
    for (int n = 0; n < known_count; n++)
        if (known[n].function == function)
            return known[n].name;
    return "?";
}
static int launch(const char *kind, const char *name, dim3 grid, unsigned threads, size_t shared) {
    fprintf(launches(), "%s\t%s\t%u,%u,%u\t%u\t%zu\n", kind, name, grid.x, grid.y, grid.z, threads, shared);
    int possible = grid.x && grid.y && grid.z && grid.y < 65536 && grid.z < 65536 && threads <= 1024 && shared <= SHARED;
    if (!possible)
        fprintf(stderr, "%s: a GPU would refuse %u x %u x %u programs of %u threads and %zu bytes\n", name, grid.x, grid.y, grid.z, threads,
                shared);
    return !possible;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch("torch", name_of(function), grid, block.x * block.y * block.z, shared);
}
cudaError_t __cudaGetKernel(cudaKernel_t *found, const void *function) { *found = (cudaKernel_t)name_of(function); return 0; }
cudaError_t __cudaLaunchKernel(cudaKernel_t name, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch("torch", (const char *)name, grid, block.x * block.y * block.z, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *function, void **arguments) {
    return launch("torch", name_of(function), how->gridDim, how->blockDim.x * how->blockDim.y * how->blockDim.z, how->dynamicSmemBytes);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *found, const void *function) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024, found->numRegs = 64, found->binaryVersion = found->ptxVersion = 90;
    found->maxDynamicSharedSizeBytes = SHARED;
    return 0;
}
SAME(cudaError_t, cudaFuncSetAttribute, const void *function, enum cudaFuncAttribute which, int value)
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *found, const void *function, int threads, size_t shared,
                                                                   unsigned flags) {
    *found = 2;
    return 0;
}

/* The driver */
SAME(CUresult, cuInit, unsigned flags)
CUresult cuDriverGetVersion(int *found) { *found = 13000; return 0; }
CUresult cuDeviceGet(CUdevice *found, int number) { *found = 0; return 0; }
CUresult cuDeviceGetCount(int *found) { *found = 1; return 0; }
CUresult cuDeviceGetAttribute(int *found, CUdevice_attribute which, CUdevice device) { *found = attribute(which); return 0; }
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0, *active = 1; return 0; }
MAKE(CUresult, cuDevicePrimaryCtxRetain, CUcontext, CUdevice device)
MAKE(CUresult, cuCtxGetCurrent, CUcontext)
SAME(CUresult, cuCtxSetCurrent, CUcontext context)
SAME(CUresult, cuCtxSetLimit, CUlimit which, size_t value)
CUresult cuCtxGetLimit(size_t *found, CUlimit which) { *found = 1 << 20; return 0; }
CUresult cuGetErrorString(CUresult error, const char **found) { *found = "a GPU that is not there refused"; return 0; }
MAKE(CUresult, cuModuleLoad, CUmodule, const char *file)
MAKE(CUresult, cuModuleLoadData, CUmodule, const void *image)
MAKE(CUresult, cuModuleLoadDataEx, CUmodule, const void *image, unsigned count, CUjit_option *options, void **values)
SAME(CUresult, cuModuleUnload, CUmodule module)
CUresult cuModuleGetFunction(CUfunction *found, CUmodule module, const char *name) { *found = (CUfunction)strdup(name); return 0; }
CUresult cuFuncGetAttribute(int *found, CUfunction_attribute which, CUfunction function) {
    *found = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 128 : which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return 0;
}
SAME(CUresult, cuFuncSetAttribute, CUfunction function, CUfunction_attribute which, int value)
SAME(CUresult, cuFuncSetCacheConfig, CUfunction function, CUfunc_cache which)
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *found, CUfunction function, int threads, size_t shared) { *found = 2; return 0; }
CUresult cuOccupancyMaxActiveClusters(int *found, CUfunction function, const CUlaunchConfig *how) { *found = 2; return 0; }
CUresult cuPointerGetAttribute(void *found, CUpointer_attribute which, CUdeviceptr place) {
    if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *(CUdeviceptr *)found = place;
    else
        *(unsigned *)found = on_gpu((void *)place) ? CU_MEMORYTYPE_DEVICE : 0;
    return 0;
}
CUresult cuLaunchKernel(CUfunction name, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c, unsigned shared,
                        CUstream stream, void **arguments, void **extra) {
    return launch("triton", (const char *)name, (dim3){x, y, z}, a * b * c, shared);
}
CUresult cuLaunchCooperativeKernel(CUfunction name, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,
                                   unsigned shared, CUstream stream, void **arguments) {
    return launch("triton", (const char *)name, (dim3){x, y, z}, a * b * c, shared);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction name, void **arguments, void **extra) {
    return launch("triton", (const char *)name, (dim3){how->gridDimX, how->gridDimY, how->gridDimZ},
                  how->blockDimX * how->blockDimY * how->blockDimZ, how->sharedMemBytes);
}

/* cuBLAS. Of cuDNN only that it is too old for attention: nothing stands in for it. */
static cublasStatus_t product(long m, long n, long k, long count, int type) {
    const char *name = type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "fp16" : "fp32";
    fprintf(launches(), "product\t%s\t%ld,%ld,%ld,%ld\n", name, m, n, k, count);
    return 0;
}
MAKE(cublasStatus_t, cublasCreate_v2, cublasHandle_t)
SAME(cublasStatus_t, cublasDestroy_v2, cublasHandle_t handle)
SAME(cublasStatus_t, cublasSetStream_v2, cublasHandle_t handle, cudaStream_t stream)
SAME(cublasStatus_t, cublasSetWorkspace_v2, cublasHandle_t handle, void *place, size_t size)
SAME(cublasStatus_t, cublasSetMathMode, cublasHandle_t handle, cublasMath_t mode)
SAME(cublasStatus_t, cublasSetPointerMode_v2, cublasHandle_t handle, cublasPointerMode_t mode)
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *found) { *found = 0; return 0; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *found) { *found = 0; return 0; }
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType type, int row_a, const void *b, cudaDataType type_b, int row_b,
                            const void *beta, void *c, cudaDataType type_c, int row_c, cublasComputeType_t in, cublasGemmAlgo_t how) {
    return product(m, n, k, 1, type);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType type, int row_a, long long next_a, const void *b,
                                          cudaDataType type_b, int row_b, long long next_b, const void *beta, void *c,
                                          cudaDataType type_c, int row_c, long long next_c, int count, cublasComputeType_t in,
                                          cublasGemmAlgo_t how) {
    return product(m, n, k, count, type);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n, int k,
                              const float *alpha, const float *a, int row_a, const float *b, int row_b, const float *beta, float *c,
                              int row_c) {
    return product(m, n, k, 1, CUDA_R_32F);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n, int k,
                                         const float *alpha, const float *a, int row_a, long long next_a, const float *b, int row_b,
                                         long long next_b, const float *beta, float *c, int row_c, long long next_c, int count) {
    return product(m, n, k, count, CUDA_R_32F);
}
SAME(cublasStatus_t, cublasSdot_v2, cublasHandle_t handle, int n, const float *x, int next_x, const float *y, int next_y, float *found)
SAME(cublasStatus_t, cublasSgemv_v2, cublasHandle_t handle, cublasOperation_t turn, int m, int n, const float *alpha, const float *a,
     int row, const float *x, int next_x, const float *beta, float *y, int next_y)
typedef struct { long type, rows, columns; } Layout;
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type, uint64_t rows, uint64_t columns, int64_t row) {
    Layout *layout = calloc(1, 512);
    *layout = (Layout){type, rows, columns};
    *made = (cublasLtMatrixLayout_t)layout;
    return 0;
}
SAME(cublasStatus_t, cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t layout)
SAME(cublasStatus_t, cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which,
     const void *value, size_t size)
MAKE(cublasStatus_t, cublasLtMatmulDescCreate, cublasLtMatmulDesc_t, cublasComputeType_t in, cudaDataType scale)
SAME(cublasStatus_t, cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t what)
SAME(cublasStatus_t, cublasLtMatmulDescSetAttribute, cublasLtMatmulDesc_t what, cublasLtMatmulDescAttributes_t which, const void *value,
     size_t size)
MAKE(cublasStatus_t, cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t)
SAME(cublasStatus_t, cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t preference)
SAME(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t preference,
     cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t size)
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most, cublasLtMatmulHeuristicResult_t *found,
                                              int *count) {
    memset(found, 0, sizeof *found);
    *count = 1;
    return 0;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t of_a, const void *b, cublasLtMatrixLayout_t of_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t of_c, void *d, cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t *how,
                              void *place, size_t size, cudaStream_t stream) {
    Layout *x = (Layout *)of_a, *y = (Layout *)of_d;
    return product(y->rows, y->columns, x->rows * x->columns / y->rows, 1, x->type);
}
size_t cudnnGetVersion(void) { return 8900; }
