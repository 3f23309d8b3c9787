/* CUDA, cuBLAS and cuDNN of a simulated H100, for simulate_gpu.sh.

   Device memory is address space that is never written. Kernels and matrix products are logged,
   not run. Events report the host's time. The library is preloaded before PyTorch's libraries and
   replaces the driver that Triton loads. It has only the functions that training with PyTorch and
   Triton call. */

#define _GNU_SOURCE
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MEMORY (79ull << 30) /* bytes */
#define SHARED 232448        /* bytes per program */
/* Define a function that does nothing and succeeds. */
#define SUCCEED(type, name, ...) \
    type name(__VA_ARGS__) { return 0; }
/* Define a function that creates a handle. */
#define CREATE(type, name, handle, ...) \
    type name(handle *out, ##__VA_ARGS__) { *out = calloc(1, 512); return 0; }

static FILE *launches(void) {
    static FILE *file;
    if (!file) {
        const char *name = getenv("LAUNCHES");
        file = fopen(name ? name : "/dev/null", "a");
        setvbuf(file, NULL, _IOLBF, 0);
    }
    return file;
}

/* Memory: the kernel allocates no page that is never written. */
static struct { char *begin; size_t size; } blocks[1 << 16];
static int block_count;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int on_gpu(const void *pointer) {
    int inside = 0;
    pthread_mutex_lock(&lock);
    for (int n = 0; n < block_count && !inside; n++)
        inside = (char *)pointer >= blocks[n].begin &&
            (char *)pointer < blocks[n].begin + blocks[n].size;
    pthread_mutex_unlock(&lock);
    return inside;
}

static cudaError_t allocate(void **out, size_t size) {
    cudaError_t error = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    if (used + size <= MEMORY && block_count < 1 << 16) {
        *out = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (*out != MAP_FAILED) {
            blocks[block_count].begin = *out;
            blocks[block_count++].size = size;
            used += size;
            error = cudaSuccess;
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

static cudaError_t release_memory(void *pointer) {
    pthread_mutex_lock(&lock);
    for (int n = 0; n < block_count; n++)
        if (blocks[n].begin == pointer) {
            munmap(pointer, blocks[n].size);
            used -= blocks[n].size;
            blocks[n] = blocks[--block_count];
            break;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t copy_memory(void *to, const void *from, size_t size) {
    int down = on_gpu(from), up = on_gpu(to);
    fprintf(launches(), "copy\t%s\t%zu\n", down ? up ? "inside" : "down" : "up", size);
    if (down && size == 1)
        *(char *)to = 1; /* one byte is a flag, such as "all are finite": it is always true */
    else if (!down || !up)
        memcpy(to, from, size);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t size) { return allocate(out, size); }
cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream) {
    return allocate(out, size);
}
cudaError_t cudaFree(void *pointer) { return release_memory(pointer); }
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) { return release_memory(pointer); }
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *all = MEMORY;
    *left = MEMORY - used;
    return 0;
}
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return 0;
}
cudaError_t cudaFreeHost(void *pointer) { free(pointer); return 0; }
SUCCEED(cudaError_t, cudaHostRegister, void *pointer, size_t size, unsigned flags)
SUCCEED(cudaError_t, cudaHostUnregister, void *pointer)
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    return copy_memory(to, from, size);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
        cudaStream_t stream) {
    return copy_memory(to, from, size);
}
SUCCEED(cudaError_t, cudaMemset, void *pointer, int value, size_t size)
SUCCEED(cudaError_t, cudaMemsetAsync, void *pointer, int value, size_t size, cudaStream_t stream)
SUCCEED(cudaError_t, cudaMemcpyToSymbol, const void *to, const void *from, size_t size,
        size_t offset, enum cudaMemcpyKind kind)
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    memset(out, 0, sizeof *out);
    out->type = on_gpu(pointer) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    out->devicePointer = (void *)pointer;
    return 0;
}

/* The device */
static int device_attribute(int which) {
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

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    strcpy(out->name, "H100, simulated");
    out->totalGlobalMem = MEMORY;
    out->major = 9;
    out->multiProcessorCount = 132;
    out->warpSize = 32;
    out->sharedMemPerBlock = 49152;
    out->sharedMemPerBlockOptin = SHARED;
    out->sharedMemPerMultiprocessor = SHARED + 1024;
    out->regsPerBlock = out->regsPerMultiprocessor = 65536;
    out->l2CacheSize = 50 << 20;
    out->memoryBusWidth = 5120;
    out->maxThreadsPerBlock = 1024;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = 2147483647;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->textureAlignment = 512;
    out->unifiedAddressing = 1;
    return 0;
}
cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device) {
    *out = device_attribute(which);
    return 0;
}
cudaError_t cudaGetDeviceCount(int *out) { *out = 1; return 0; }
cudaError_t cudaGetDevice(int *out) { *out = 0; return 0; }
cudaError_t cudaDriverGetVersion(int *out) { *out = 13000; return 0; }
cudaError_t cudaRuntimeGetVersion(int *out) { *out = 13000; return 0; }
cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device) {
    snprintf(out, size, "0000:00:00.0");
    return 0;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return 0;
}
cudaError_t cudaDeviceCanAccessPeer(int *out, int one, int other) { *out = 0; return 0; }
SUCCEED(cudaError_t, cudaDeviceEnablePeerAccess, int device, unsigned flags)
SUCCEED(cudaError_t, cudaSetDevice, int device)
SUCCEED(cudaError_t, cudaDeviceSynchronize, void)
SUCCEED(cudaError_t, cudaGetLastError, void)
SUCCEED(cudaError_t, cudaPeekAtLastError, void)
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
        unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    *out = dlsym(RTLD_DEFAULT, name);
    if (result)
        *result = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *out ? cudaSuccess : cudaErrorSymbolNotFound;
}

/* Streams, events, graphs */
static double milliseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * time.tv_sec + 1e-6 * time.tv_nsec;
}
CREATE(cudaError_t, cudaEventCreate, cudaEvent_t)
CREATE(cudaError_t, cudaEventCreateWithFlags, cudaEvent_t, unsigned flags)
cudaError_t cudaEventDestroy(cudaEvent_t event) { free(event); return 0; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    *(double *)event = milliseconds();
    return 0;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t from, cudaEvent_t to) {
    *out = *(double *)to - *(double *)from;
    return 0;
}
SUCCEED(cudaError_t, cudaEventQuery, cudaEvent_t event)
SUCCEED(cudaError_t, cudaEventSynchronize, cudaEvent_t event)
CREATE(cudaError_t, cudaStreamCreateWithPriority, cudaStream_t, unsigned flags, int priority)
SUCCEED(cudaError_t, cudaStreamDestroy, cudaStream_t stream)
SUCCEED(cudaError_t, cudaStreamQuery, cudaStream_t stream)
SUCCEED(cudaError_t, cudaStreamSynchronize, cudaStream_t stream)
SUCCEED(cudaError_t, cudaStreamWaitEvent, cudaStream_t stream, cudaEvent_t event, unsigned flags)
SUCCEED(cudaError_t, cudaThreadExchangeStreamCaptureMode, enum cudaStreamCaptureMode *mode)
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *out) {
    *out = cudaStreamCaptureStatusNone;
    return 0;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *out,
        unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
        const cudaGraphEdgeData **edges, size_t *count) {
    return cudaStreamIsCapturing(stream, out);
}

/* Kernels: PyTorch registers its names; Triton asks for functions of a module by name. */
static struct { const void *function; const char *name; } registered_kernels[1 << 18];
static int registered_count;

void __cudaRegisterFunction(void **handle, const char *function, char *stub, const char *name,
        int limit, uint3 *thread, uint3 *block, dim3 *threads, dim3 *blocks_, int *size) {
    static void (*registered)(void **, const char *, char *, const char *, int, uint3 *, uint3 *,
        dim3 *, dim3 *, int *);
    if (!registered)
        registered = dlsym(RTLD_NEXT, "__cudaRegisterFunction");
    if (registered_count < 1 << 18) {
        registered_kernels[registered_count].function = function;
        registered_kernels[registered_count++].name = name;
    }
    registered(handle, function, stub, name, limit, thread, block, threads, blocks_, size);
}
static const char *name_of(const void *function) {
    for (int n = 0; n < registered_count; n++)
        if (registered_kernels[n].function == function)
            return registered_kernels[n].name;
    return "?";
}
static int launch(const char *kind, const char *name, dim3 grid, unsigned threads, size_t shared) {
    fprintf(launches(), "%s\t%s\t%u,%u,%u\t%u\t%zu\n", kind, name, grid.x, grid.y, grid.z, threads,
        shared);
    int possible = grid.x && grid.y && grid.z && grid.y < 65536 && grid.z < 65536 &&
        threads <= 1024 && shared <= SHARED;
    if (!possible)
        fprintf(stderr,
            "%s: a GPU would refuse %u x %u x %u programs of %u threads and %zu bytes\n", name,
            grid.x, grid.y, grid.z, threads, shared);
    return !possible;
}
cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
        size_t shared, cudaStream_t stream) {
    return launch("torch", name_of(function), grid, block.x * block.y * block.z, shared);
}
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *function) {
    *out = (cudaKernel_t)name_of(function);
    return 0;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t name, dim3 grid, dim3 block, void **arguments,
        size_t shared, cudaStream_t stream) {
    return launch("torch", (const char *)name, grid, block.x * block.y * block.z, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
        void **arguments) {
    return launch("torch", name_of(function), config->gridDim,
        config->blockDim.x * config->blockDim.y * config->blockDim.z, config->dynamicSmemBytes);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 64;
    out->binaryVersion = out->ptxVersion = 90;
    out->maxDynamicSharedSizeBytes = SHARED;
    return 0;
}
SUCCEED(cudaError_t, cudaFuncSetAttribute, const void *function, enum cudaFuncAttribute which,
        int value)
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function,
        int threads, size_t shared, unsigned flags) {
    *out = 2;
    return 0;
}

/* The driver */
SUCCEED(CUresult, cuInit, unsigned flags)
CUresult cuDriverGetVersion(int *out) { *out = 13000; return 0; }
CUresult cuDeviceGet(CUdevice *out, int number) { *out = 0; return 0; }
CUresult cuDeviceGetCount(int *out) { *out = 1; return 0; }
CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice device) {
    *out = device_attribute(which);
    return 0;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return 0;
}
CREATE(CUresult, cuDevicePrimaryCtxRetain, CUcontext, CUdevice device)
CREATE(CUresult, cuCtxGetCurrent, CUcontext)
SUCCEED(CUresult, cuCtxSetCurrent, CUcontext context)
SUCCEED(CUresult, cuCtxSetLimit, CUlimit which, size_t value)
CUresult cuCtxGetLimit(size_t *out, CUlimit which) { *out = 1 << 20; return 0; }
CUresult cuGetErrorString(CUresult error, const char **out) {
    *out = "the simulated GPU refused";
    return 0;
}
CREATE(CUresult, cuModuleLoad, CUmodule, const char *file)
CREATE(CUresult, cuModuleLoadData, CUmodule, const void *image)
CREATE(CUresult, cuModuleLoadDataEx, CUmodule, const void *image, unsigned count,
        CUjit_option *options, void **values)
SUCCEED(CUresult, cuModuleUnload, CUmodule module)
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    *out = (CUfunction)strdup(name);
    return 0;
}
CUresult cuFuncGetAttribute(int *out, CUfunction_attribute which, CUfunction function) {
    *out = which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 128 : which ==
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return 0;
}
SUCCEED(CUresult, cuFuncSetAttribute, CUfunction function, CUfunction_attribute which, int value)
SUCCEED(CUresult, cuFuncSetCacheConfig, CUfunction function, CUfunc_cache which)
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction function, int threads,
        size_t shared) {
    *out = 2;
    return 0;
}
CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction function, const CUlaunchConfig *config) {
    *out = 2;
    return 0;
}
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr pointer) {
    if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *(CUdeviceptr *)out = pointer;
    else
        *(unsigned *)out = on_gpu((void *)pointer) ? CU_MEMORYTYPE_DEVICE : 0;
    return 0;
}
CUresult cuLaunchKernel(CUfunction name, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b,
        unsigned c, unsigned shared, CUstream stream, void **arguments, void **extra) {
    return launch("triton", (const char *)name, (dim3){x, y, z}, a * b * c, shared);
}
CUresult cuLaunchCooperativeKernel(CUfunction name, unsigned x, unsigned y, unsigned z, unsigned a,
        unsigned b, unsigned c, unsigned shared, CUstream stream, void **arguments) {
    return launch("triton", (const char *)name, (dim3){x, y, z}, a * b * c, shared);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction name, void **arguments,
        void **extra) {
    return launch("triton", (const char *)name, (dim3){config->gridDimX, config->gridDimY,
        config->gridDimZ}, config->blockDimX * config->blockDimY * config->blockDimZ,
        config->sharedMemBytes);
}

/* cuBLAS */
static cublasStatus_t product(long m, long n, long k, long count, int type) {
    const char *name = type == CUDA_R_16BF ? "bf16" : type == CUDA_R_16F ? "fp16" : "fp32";
    fprintf(launches(), "product\t%s\t%ld,%ld,%ld,%ld\n", name, m, n, k, count);
    return 0;
}
CREATE(cublasStatus_t, cublasCreate_v2, cublasHandle_t)
SUCCEED(cublasStatus_t, cublasDestroy_v2, cublasHandle_t handle)
SUCCEED(cublasStatus_t, cublasSetStream_v2, cublasHandle_t handle, cudaStream_t stream)
SUCCEED(cublasStatus_t, cublasSetWorkspace_v2, cublasHandle_t handle, void *pointer, size_t size)
SUCCEED(cublasStatus_t, cublasSetMathMode, cublasHandle_t handle, cublasMath_t mode)
SUCCEED(cublasStatus_t, cublasSetPointerMode_v2, cublasHandle_t handle, cublasPointerMode_t mode)
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *out) { *out = 0; return 0; }
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *out) {
    *out = 0;
    return 0;
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t trans_a,
        cublasOperation_t trans_b, int m, int n, int k, const void *alpha, const void *a,
        cudaDataType type, int lda, const void *b, cudaDataType type_b, int ldb, const void *beta,
        void *c, cudaDataType type_c, int ldc, cublasComputeType_t in, cublasGemmAlgo_t config) {
    return product(m, n, k, 1, type);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
        cublasOperation_t trans_b, int m, int n, int k, const void *alpha, const void *a,
        cudaDataType type, int lda, long long stride_a, const void *b, cudaDataType type_b, int ldb,
        long long stride_b, const void *beta, void *c, cudaDataType type_c, int ldc,
        long long stride_c, int count, cublasComputeType_t in, cublasGemmAlgo_t config) {
    return product(m, n, k, count, type);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t trans_a,
        cublasOperation_t trans_b, int m, int n, int k, const float *alpha, const float *a, int lda,
        const float *b, int ldb, const float *beta, float *c, int ldc) {
    return product(m, n, k, 1, CUDA_R_32F);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t trans_a,
        cublasOperation_t trans_b, int m, int n, int k, const float *alpha, const float *a, int lda,
        long long stride_a, const float *b, int ldb, long long stride_b, const float *beta,
        float *c, int ldc, long long stride_c, int count) {
    return product(m, n, k, count, CUDA_R_32F);
}
SUCCEED(cublasStatus_t, cublasSdot_v2, cublasHandle_t handle, int n, const float *x, int incx,
        const float *y, int incy, float *out)
SUCCEED(cublasStatus_t, cublasSgemv_v2, cublasHandle_t handle, cublasOperation_t trans, int m,
        int n, const float *alpha, const float *a, int row, const float *x, int incx,
        const float *beta, float *y, int incy)
typedef struct { long type, rows, columns; } Layout;
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
        uint64_t rows, uint64_t columns, int64_t row) {
    Layout *layout = calloc(1, 512);
    *layout = (Layout){type, rows, columns};
    *out = (cublasLtMatrixLayout_t)layout;
    return 0;
}
SUCCEED(cublasStatus_t, cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t layout)
SUCCEED(cublasStatus_t, cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayout_t layout,
        cublasLtMatrixLayoutAttribute_t which, const void *value, size_t size)
CREATE(cublasStatus_t, cublasLtMatmulDescCreate, cublasLtMatmulDesc_t, cublasComputeType_t in,
        cudaDataType scale)
SUCCEED(cublasStatus_t, cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t description)
SUCCEED(cublasStatus_t, cublasLtMatmulDescSetAttribute, cublasLtMatmulDesc_t description,
        cublasLtMatmulDescAttributes_t which, const void *value, size_t size)
CREATE(cublasStatus_t, cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t)
SUCCEED(cublasStatus_t, cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t preference)
SUCCEED(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t preference,
        cublasLtMatmulPreferenceAttributes_t which, const void *value, size_t size)
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
        cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
        int requested, cublasLtMatmulHeuristicResult_t *out, int *count) {
    memset(out, 0, sizeof *out);
    *count = 1;
    return 0;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
        const void *alpha, const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
        cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
        cublasLtMatrixLayout_t layout_c, void *d, cublasLtMatrixLayout_t layout_d,
        const cublasLtMatmulAlgo_t *config, void *pointer, size_t size, cudaStream_t stream) {
    Layout *x = (Layout *)layout_a, *y = (Layout *)layout_d;
    return product(y->rows, y->columns, x->rows * x->columns / y->rows, 1, x->type);
}

/* cuDNN: its graphs, which PyTorch uses for attention. Every graph has one engine, which needs no
   workspace. An executed plan is logged with the number of matrix products in its graph: two in
   attention forward, five in its backward. CUDNN sets the version, as in 8900 for cuDNN 8.9. */
typedef struct { int type, products; } Descriptor;
static int products; /* in the graph that is being made */

size_t cudnnGetVersion(void) {
    const char *version = getenv("CUDNN");
    return version ? atoi(version) : 91900;
}
size_t cudnnGetCudartVersion(void) { return 13000; }
const char *cudnnGetErrorString(cudnnStatus_t status) { return "the simulated cuDNN"; }
void cudnnGetLastErrorString(char *out, size_t size) { snprintf(out, size, "none"); }
CREATE(cudnnStatus_t, cudnnCreate, cudnnHandle_t)
SUCCEED(cudnnStatus_t, cudnnDestroy, cudnnHandle_t handle)
SUCCEED(cudnnStatus_t, cudnnSetStream, cudnnHandle_t handle, cudaStream_t stream)
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
        cudnnBackendDescriptor_t *out) {
    Descriptor *descriptor = calloc(1, 512);
    descriptor->type = type;
    products += type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
    *out = (cudnnBackendDescriptor_t)descriptor;
    return 0;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    free(descriptor);
    return 0;
}
SUCCEED(cudnnStatus_t, cudnnBackendSetAttribute, cudnnBackendDescriptor_t descriptor,
        cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
        const void *values)
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
        cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t requested,
        int64_t *count, void *out) {
    int64_t known = name == CUDNN_ATTR_ENGINEHEUR_RESULTS || name == CUDNN_ATTR_ENGINECFG_ENGINE;
    int size = type == CUDNN_TYPE_INT64 ? 8 : type == CUDNN_TYPE_INT32 ? 4 : 0;
    if (size && requested && out) {
        memset(out, 0, size); /* bytes of workspace and shared memory, the number of the engine */
        known = 1;
    }
    if (count)
        *count = known;
    return 0;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t out) {
    Descriptor *descriptor = (Descriptor *)out;
    if (descriptor->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        descriptor->products = products;
        products = 0;
    }
    return 0;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
        cudnnBackendDescriptor_t pointers) {
    fprintf(launches(), "cudnn\tattention\t%d\n", ((Descriptor *)plan)->products);
    return 0;
}
