// The few calls of the CUDA driver that an engine makes by itself, looked up in the library that FTCACHE_TEST_CUDA_DRIVER
// names: the emulated driver in every test.

#ifndef FFI_TESTS_CUDA_DRIVER_H
#define FFI_TESTS_CUDA_DRIVER_H

#include <dlfcn.h>

typedef unsigned long long cuda_address;

typedef struct cuda {
    void *library, *context;
    int ordinal;
    int (*context_get_current)(void **);
    int (*context_set_current)(void *);
    int (*primary_release)(int);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_synchronize)(void *);
    int (*allocate)(cuda_address *, size_t);
    int (*free_memory)(cuda_address);
    int (*to_device)(cuda_address, const void *, size_t, void *);
    int (*to_host)(void *, cuda_address, size_t);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch)(void *, void *);
    int (*graph_destroy)(void *);
    int (*graph_exec_destroy)(void *);
} cuda;

#define CUDA(call) CHECK((call) == 0)

static inline const char *cuda_path(void) {
    const char *path = getenv("FTCACHE_TEST_CUDA_DRIVER");
    CHECK(path != NULL);
    return path;
}

static inline void cuda_symbol(const cuda *driver, const char *name, void *target) {
    void *symbol = dlsym(driver->library, name);
    CHECK(symbol != NULL);
    memcpy(target, &symbol, sizeof symbol);
}

// A device in its primary context, which is made current to this thread.
static inline cuda cuda_open_at(int ordinal) {
    cuda driver;
    int (*init)(unsigned), (*device_get)(int *, int), (*primary_retain)(void **, int), device;
    memset(&driver, 0, sizeof driver);
    driver.library = dlopen(cuda_path(), RTLD_NOW | RTLD_LOCAL);
    CHECK(driver.library != NULL);
    cuda_symbol(&driver, "cuInit", &init);
    cuda_symbol(&driver, "cuDeviceGet", &device_get);
    cuda_symbol(&driver, "cuDevicePrimaryCtxRetain", &primary_retain);
    cuda_symbol(&driver, "cuDevicePrimaryCtxRelease_v2", &driver.primary_release);
    cuda_symbol(&driver, "cuCtxGetCurrent", &driver.context_get_current);
    cuda_symbol(&driver, "cuCtxSetCurrent", &driver.context_set_current);
    cuda_symbol(&driver, "cuStreamCreate", &driver.stream_create);
    cuda_symbol(&driver, "cuStreamDestroy_v2", &driver.stream_destroy);
    cuda_symbol(&driver, "cuStreamSynchronize", &driver.stream_synchronize);
    cuda_symbol(&driver, "cuMemAlloc_v2", &driver.allocate);
    cuda_symbol(&driver, "cuMemFree_v2", &driver.free_memory);
    cuda_symbol(&driver, "cuMemcpyHtoDAsync_v2", &driver.to_device);
    cuda_symbol(&driver, "cuMemcpyDtoH_v2", &driver.to_host);
    cuda_symbol(&driver, "cuStreamBeginCapture_v2", &driver.begin_capture);
    cuda_symbol(&driver, "cuStreamEndCapture", &driver.end_capture);
    cuda_symbol(&driver, "cuGraphInstantiateWithFlags", &driver.instantiate);
    cuda_symbol(&driver, "cuGraphLaunch", &driver.launch);
    cuda_symbol(&driver, "cuGraphDestroy", &driver.graph_destroy);
    cuda_symbol(&driver, "cuGraphExecDestroy", &driver.graph_exec_destroy);
    CUDA(init(0));
    CUDA(device_get(&device, ordinal));
    CUDA(primary_retain(&driver.context, device));
    CUDA(driver.context_set_current(driver.context));
    driver.ordinal = device;
    return driver;
}

static inline cuda cuda_open(void) { return cuda_open_at(0); }

static inline void *cuda_stream(cuda *driver) {
    void *stream = NULL;
    CUDA(driver->stream_create(&stream, 1));
    return stream;
}

static inline void *cuda_allocate(cuda *driver, size_t bytes) {
    cuda_address address = 0;
    CUDA(driver->allocate(&address, bytes));
    return (void *)(uintptr_t)address;
}

// On the stream that reads it: a copy without one is not ordered before what a stream is given. The source stays as it is
// until the stream was synchronised.
static inline void cuda_write(cuda *driver, void *stream, void *target, const void *source, size_t bytes) {
    CUDA(driver->to_device((cuda_address)(uintptr_t)target, source, bytes, stream));
}

static inline void cuda_read(cuda *driver, void *target, const void *source, size_t bytes) {
    CUDA(driver->to_host(target, (cuda_address)(uintptr_t)source, bytes));
}

static inline void cuda_begin_capture(cuda *driver, void *stream) { CUDA(driver->begin_capture(stream, 0)); }

static inline void *cuda_end_capture(cuda *driver, void *stream) {
    void *graph = NULL, *executable = NULL;
    CUDA(driver->end_capture(stream, &graph));
    CUDA(driver->instantiate(&executable, graph, 0));
    CUDA(driver->graph_destroy(graph));
    return executable;
}

static inline void cuda_launch(cuda *driver, void *graph, void *stream) { CUDA(driver->launch(graph, stream)); }
static inline void cuda_synchronize(cuda *driver, void *stream) { CUDA(driver->stream_synchronize(stream)); }
static inline void cuda_destroy_graph(cuda *driver, void *graph) { CUDA(driver->graph_exec_destroy(graph)); }

static inline void cuda_close(cuda *driver, void *stream, void *memory) {
    if (stream != NULL) CUDA(driver->stream_destroy(stream));
    if (memory != NULL) CUDA(driver->free_memory((cuda_address)(uintptr_t)memory));
    CUDA(driver->primary_release(driver->ordinal));
    CHECK(dlclose(driver->library) == 0);
}

// A cache of the examples' model on the first device of that driver, its rows pinned.
#ifdef FFI_TESTS_EXAMPLES_H
static inline ftcache *example_cuda_cache(uint64_t slot_count) {
    ftcache_configuration *configuration = example_configuration(slot_count);
    ftcache_config config;
    ftcache *cache = NULL;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.device = FTCACHE_DEVICE_CUDA;
    config.cuda_driver = cuda_path();
    OK(ftcache_new(configuration, &config, &cache));
    ftcache_configuration_free(configuration);
    OK(ftcache_register(cache, example_rows, sizeof example_rows, 0, 0));
    example_attach(cache);
    return cache;
}
#endif

#endif
