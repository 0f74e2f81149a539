// Admission of a step of which a CPU computes what is not fetched, under a rule with scores: see admission.h and
// scores.h. Shapes and shared memory as for ftcache_admit.
#include "admission.h"

namespace ftcache {

FTC_KERNEL(ftcache_admit_hybrid_scored, ScoredHybridAdmission) {
    FTC_SHARED(AdmissionShared, shared);
    FTC_SHARED(ScoringShared, scoring);
    FTC_DYNAMIC_SHARED(dynamic);
    admit<true, true>(args.hybrid.admission, &args.hybrid, &args.scores, shared, &scoring, dynamic);
}

}  // namespace ftcache
