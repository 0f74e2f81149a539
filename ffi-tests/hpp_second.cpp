// The wrapper in a second source of the same program: nothing in it is defined twice.

#include "ftcache.hpp"

ftc::result<ftc::cache> made_elsewhere(const ftc::configuration &configuration);

ftc::result<ftc::cache> made_elsewhere(const ftc::configuration &configuration) {
    return ftc::cache::make(configuration);
}
