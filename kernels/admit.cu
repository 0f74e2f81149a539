// Admission of a step whose misses are all fetched: see admission.h. One block; any number of threads that is a
// multiple of 32; WORKSPACE_BYTES of dynamic shared memory an expert of the layer, if it has no more than
// SHARED_EXPERTS.
#include "admission.h"

namespace ftcache {

FTC_KERNEL(ftcache_admit, Admission) {
    FTC_SHARED(AdmissionShared, shared);
    FTC_DYNAMIC_SHARED(dynamic);
    admit<false, false>(args, nullptr, nullptr, shared, nullptr, dynamic);
}

}  // namespace ftcache
