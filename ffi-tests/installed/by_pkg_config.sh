#!/bin/sh
# Builds and runs the consumer with nothing but a compiler and pkg-config: the shared library, then the archive.
#
#   CC=cc PKG_CONFIG=pkg-config PKG_CONFIG_PATH=P/lib/pkgconfig by_pkg_config.sh BUILD_FOLDER
set -eu
source=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
libdir=$("$PKG_CONFIG" --variable=libdir ftcache)

# Blanks in the prefix come marked for a shell.
eval "set -- $("$PKG_CONFIG" --cflags --libs ftcache) -Wl,-rpath,$libdir"
"$CC" -o shared "$source/consumer.c" "$@"
./shared

eval "set -- $("$PKG_CONFIG" --cflags ftcache) $libdir/libftcache.a \
  $("$PKG_CONFIG" --static --libs ftcache | sed 's/-lftcache//')"
"$CC" -o static "$source/consumer.c" "$@"
./static

if command -v ldd >/dev/null; then
  # Of 0.x each minor number is another interface.
  interface=$("$PKG_CONFIG" --modversion ftcache | sed -E 's/^(0\.[0-9]+|[1-9][0-9]*)\..*/\1/')
  ldd shared | grep -q "libftcache\.so\.$interface => .*/libftcache\.so\.$interface "
  if ldd static | grep libftcache; then exit 1; fi
fi
echo "both ran"
