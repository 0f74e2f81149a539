// Two threads change one model, which the header forbids: the thread sanitizer has to see it inside the library, or it sees
// nothing there.

#include <thread>

#include "check.h"

int main() {
    ftcache_model *model = new_model();
    const auto change = [model] {
        const uint64_t row_bytes[] = {24, 2};
        for (int times = 0; times < 1000; times++) {
            SIZED(ftcache_layer, key);
            key.bank_count = 2;
            key.row_bytes = row_bytes;
            OK(ftcache_model_layer_set(model, 0, &key));
        }
    };
    std::thread first(change), second(change);
    first.join();
    second.join();
    ftcache_model_free(model);
    return 0;
}
