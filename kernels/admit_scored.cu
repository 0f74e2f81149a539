// Admission of a step whose misses are all fetched, under a rule with scores: see admission.h and scores.h. Shapes and
// shared memory as for ftcache_admit.
#include "admission.h"

namespace ftcache {

FTC_KERNEL(ftcache_admit_scored, ScoredAdmission) {
    FTC_SHARED(AdmissionShared, shared);
    FTC_SHARED(ScoringShared, scoring);
    FTC_DYNAMIC_SHARED(dynamic);
    admit<false, true>(args.admission, nullptr, &args.scores, shared, &scoring, dynamic);
}

}  // namespace ftcache
