// Admission of a step of which a CPU computes what is not fetched: see admission.h. Routes and their weights are split
// by where they are computed, in the same launch. Shapes and shared memory as for ftcache_admit.
#include "admission.h"

namespace ftcache {

FTC_KERNEL(ftcache_admit_hybrid, HybridAdmission) {
    FTC_SHARED(AdmissionShared, shared);
    FTC_DYNAMIC_SHARED(dynamic);
    admit<true, false>(args.admission, &args, nullptr, shared, nullptr, dynamic);
}

}  // namespace ftcache
