#!/usr/bin/env bash
# Brings the servers the tests talk to into .servers/bin, without root, without
# installing anything on the machine and without starting a daemon.
#
# The machine's own server is taken where it is new enough; else Debian's
# packages are downloaded and unpacked beside the checkout.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly ROOT="$PWD"
readonly SERVERS="$ROOT/.servers"
readonly BIN="$SERVERS/bin"
UNPACKED="$SERVERS/root"
# The oldest of each in the support matrix.
readonly OLDEST_REDIS="6.2"
readonly OLDEST_ETCD="3.4"

say() { printf 'servers: %s\n' "$*"; }

fail() {
  printf 'servers: %s\n' "$@" >&2
  exit 1
}

# Redis says `v=7.0.15`, etcd `Version: 3.4.23`; etcdctl has a command for it instead of an option.
version_of() {
  { "$1" --version || "$1" version; } 2>/dev/null |
    sed -n 's/.*\(v=\|ersion: \)\([0-9][0-9.]*\).*/\2/p' | head -n 1
}

# new_enough PROGRAM OLDEST
new_enough() {
  local found
  found="$(version_of "$1")" || return 1
  [[ -n "$found" ]] && [[ "$(printf '%s\n' "$2" "$found" | sort -V | head -n 1)" == "$2" ]]
}

# there NAME OLDEST: what an earlier run brought still serves.
there() {
  new_enough "$BIN/$1" "$2" && say "$1 $(version_of "$BIN/$1") is there"
}

# What the search path offers, our own folder left out.
on_this_machine() {
  local candidate
  while read -r candidate; do
    [[ "$candidate" == "$BIN/"* ]] || { printf '%s\n' "$candidate"; return 0; }
  done < <(type -aP "$1")
  return 1
}

use_own() {
  local name="$1" oldest="$2" path
  path="$(on_this_machine "$name")" || return 1
  new_enough "$path" "$oldest" || { say "$path is older than $oldest, not used"; return 1; }
  ln -sfn "$path" "$BIN/$name"
  say "$name $(version_of "$path"), this machine's own"
}

need_apt() {
  local tool
  for tool in apt-get apt-cache dpkg dpkg-deb dpkg-query; do
    type -P "$tool" >/dev/null || missing_server "this machine has no $tool, so Debian's packages cannot be used"
  done
}

# What is being brought, and how people install it themselves: set by each bring_*.
WANTED="" DEBIAN="" FEDORA="" BREW=""

missing_server() {
  fail "no $WANTED found: $1" \
    "install one and run this again; it needs no running service:" \
    "  Debian, Ubuntu:  sudo apt-get install $DEBIAN" \
    "  Fedora:          sudo dnf install $FEDORA" \
    "  macOS:           brew install $BREW" \
    "The tests start it themselves, on a free loopback port."
}

# More options of apt, where a package comes from another list than the machine's own.
APT=()

known_to_apt() {
  apt-cache ${APT[@]+"${APT[@]}"} show --no-all-versions "$1" >/dev/null 2>&1
}

# The lists belong to the machine: they are only fetched by root, and only when missing.
need_lists() {
  known_to_apt "$1" && return 0
  if [[ "$(id -u)" == 0 ]]; then
    say "no package lists yet: apt-get update"
    apt-get -qq update
    known_to_apt "$1" && return 0
  fi
  missing_server "the package lists are missing or too old (as root: apt-get update)"
}

installed() {
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
}

# The first choice of each dependency that is a library and not on the machine.
missing_libraries() {
  local name
  dpkg-deb -f "$1" Pre-Depends Depends |
    sed 's/^[A-Za-z-]*: //' | tr ',' '\n' | sed 's/|.*//; s/([^)]*)//; s/:any//; s/ //g' |
    while read -r name; do
      [[ "$name" == lib* ]] && ! installed "$name" && printf '%s\n' "$name"
    done
  return 0
}

download() {
  local name="$1"
  compgen -G "$SERVERS/debs/${name}_*.deb" >/dev/null && return 0
  (cd "$SERVERS/debs" && {
    apt-get -qq ${APT[@]+"${APT[@]}"} download "$name" 2>"$SERVERS/apt.log" ||
      apt-get -qq download "$name" 2>"$SERVERS/apt.log"
  }) || missing_server "apt-get download $name failed: $(tail -n 1 "$SERVERS/apt.log") (as root: apt-get update)"
}

unpack() {
  local name="$1" deb library
  download "$name"
  deb="$(compgen -G "$SERVERS/debs/${name}_*.deb" | head -n 1)"
  dpkg -x "$deb" "$UNPACKED"
  for library in $(missing_libraries "$deb"); do
    [[ -n "${seen[$library]:-}" ]] || { seen[$library]=1; unpack "$library"; }
  done
}

library_path() {
  find "$UNPACKED" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:
}

# `exec` keeps the process id: whoever starts the wrapper can end the server.
wrap() {
  local name="$1" libraries
  libraries="$(library_path)"
  rm -f "$BIN/$name"
  cat >"$BIN/$name" <<WRAPPER
#!/bin/sh
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "$UNPACKED/usr/bin/$name" "\$@"
WRAPPER
  chmod +x "$BIN/$name"
}

# from_packages OLDEST "PACKAGES" "PROGRAMS": the first program is the server.
from_packages() {
  local oldest="$1" name
  local -a packages programs
  read -ra packages <<<"$2"
  read -ra programs <<<"$3"
  declare -A seen=()
  for name in "${packages[@]}"; do unpack "$name"; done
  for name in "${programs[@]}"; do wrap "$name"; done
  name="${programs[0]}"
  new_enough "$BIN/$name" "$oldest" || missing_server "the unpacked $name does not start or is older than $oldest"
  say "$name $(version_of "$BIN/$name"), unpacked under .servers"
}

bring_redis() {
  WANTED="redis-server >= $OLDEST_REDIS" DEBIAN="redis-server" FEDORA="redis" BREW="redis"
  there redis-server "$OLDEST_REDIS" && return 0
  use_own redis-server "$OLDEST_REDIS" && return 0
  need_apt
  need_lists redis-server
  from_packages "$OLDEST_REDIS" "redis-server redis-tools" "redis-server redis-cli"
}

# The host that this machine takes Debian from; its lists of backports stay in our own folder.
backports() {
  local uri release="" id=""
  # shellcheck source=/dev/null
  release="$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")"
  # shellcheck source=/dev/null
  id="$(. /etc/os-release && printf '%s' "${ID:-}")"
  [[ "$id" == debian && -n "$release" ]] || return 1
  uri="$(apt-get indextargets --format '$(REPO_URI)' "Codename: $release" 2>/dev/null | head -n 1)"
  [[ -n "$uri" ]] || return 1
  mkdir -p "$SERVERS/apt/lists/partial" "$SERVERS/apt/cache/archives/partial"
  printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s-backports main\n' \
    "$uri" "$release" >"$SERVERS/apt/sources.list"
  APT=(-o "Dir::Etc::sourcelist=$SERVERS/apt/sources.list" -o "Dir::Etc::sourceparts=-"
    -o "Dir::State::lists=$SERVERS/apt/lists" -o "Dir::Cache=$SERVERS/apt/cache")
  known_to_apt "$1" || apt-get -qq "${APT[@]}" update >"$SERVERS/apt.log" 2>&1
  known_to_apt "$1"
}

# The machine's own release may have it, or the backports to it.
bring_valkey() {
  WANTED="valkey-server" DEBIAN="valkey-server" FEDORA="valkey" BREW="valkey"
  there valkey-server "$OLDEST_REDIS" && return 0
  use_own valkey-server "$OLDEST_REDIS" && return 0
  local -a APT=()
  if type -P apt-cache >/dev/null && { known_to_apt valkey-server || backports valkey-server; }; then
    from_packages "$OLDEST_REDIS" "valkey-tools valkey-server" "valkey-server valkey-cli"
  else
    say "valkey-server: neither in this release nor in its backports, tests run on redis-server alone"
  fi
}

# The tests need both: etcdctl is the other party at a shared key.
bring_etcd() {
  WANTED="etcd and etcdctl >= $OLDEST_ETCD" DEBIAN="etcd-server etcd-client" FEDORA="etcd" BREW="etcd"
  there etcd "$OLDEST_ETCD" && there etcdctl "$OLDEST_ETCD" && return 0
  use_own etcd "$OLDEST_ETCD" && use_own etcdctl "$OLDEST_ETCD" && return 0
  need_apt
  need_lists etcd-server
  from_packages "$OLDEST_ETCD" "etcd-server etcd-client" "etcd etcdctl"
}

# -- PostgreSQL and its pooler, for tests that start both as an unprivileged user

# The oldest PostgreSQL of the support matrix.
readonly OLDEST_POSTGRESQL=13
readonly POSTGRESQL_PROGRAMS="postgres initdb pg_basebackup psql"

postgresql_version_of() {
  "$1" --version 2>/dev/null | sed -n 's/^[a-z_]* (PostgreSQL) \([0-9]*\).*/\1/p'
}

# Whether a folder holds every program, of a version that will do.
postgresql_folder() {
  local name found
  for name in $POSTGRESQL_PROGRAMS; do [[ -x "$1/$name" ]] || return 1; done
  found="$(postgresql_version_of "$1/postgres")"
  [[ -n "$found" ]] && ((found >= OLDEST_POSTGRESQL))
}

# Debian keeps the server's programs off the search path, one folder a version.
own_postgresql() {
  local folder
  while read -r folder; do
    postgresql_folder "$folder" && { printf '%s\n' "$folder"; return 0; }
  done < <(compgen -G '/usr/lib/postgresql/*/bin' | sort -rV; dirname "$(on_this_machine postgres)" 2>/dev/null)
  return 1
}

# Paths from the wrapper's own place: tests copy the folder where their unprivileged user may read.
wrap_relative() {
  local program="$1" name libraries
  name="${2:-${program##*/}}"
  libraries="$(find "$UNPACKED" \( -name '*.so.[0-9]*' -o -name 'lib*-*.so' \) -printf "\$here/${UNPACKED##*/}/%P\n" | sed 's|/[^/]*$||' | sort -u | paste -sd:)"
  rm -f "$BIN/$name"
  cat >"$BIN/$name" <<WRAPPER
#!/bin/sh
here="\$(cd "\$(dirname "\$0")/.." && pwd)"
LD_LIBRARY_PATH="$libraries\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}" exec "\$here/${program#"$SERVERS/"}" "\$@"
WRAPPER
  chmod +x "$BIN/$name"
}

unpack_postgresql() {
  declare -A seen=()
  local name
  # Only for compiling queries at run time, and larger than all the rest.
  for name in libllvm{11..25}; do seen[$name]=1; done
  for name in "$@"; do unpack "$name"; done
}

postgresql_package() {
  apt-cache depends postgresql 2>/dev/null | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -n 1
}

bring_postgresql() {
  local folder name package
  WANTED="PostgreSQL >= $OLDEST_POSTGRESQL" DEBIAN="postgresql" FEDORA="postgresql-server" BREW="postgresql"
  postgresql_folder "$BIN" && { say "postgresql $(postgresql_version_of "$BIN/postgres") is there"; return 0; }
  if folder="$(own_postgresql)"; then
    for name in $POSTGRESQL_PROGRAMS; do ln -sfn "$folder/$name" "$BIN/$name"; done
    say "postgresql $(postgresql_version_of "$BIN/postgres"), this machine's own"
    return 0
  fi
  need_apt
  need_lists postgresql
  package="$(postgresql_package)"
  [[ -n "$package" ]] || missing_server "no package of it is known to apt"
  unpack_postgresql "$package" "${package/-/-client-}" libpq5
  for name in $POSTGRESQL_PROGRAMS; do
    wrap_relative "$UNPACKED/usr/lib/postgresql/${package##*-}/bin/$name"
  done
  postgresql_folder "$BIN" || missing_server "the unpacked server does not start or is older than $OLDEST_POSTGRESQL"
  say "postgresql $(postgresql_version_of "$BIN/postgres"), unpacked under .servers"
}

# -- MariaDB. MySQL is in no package of Debian.

readonly OLDEST_MARIADB="10.6"

mariadb_version_of() {
  "$1" --no-defaults --version 2>/dev/null | sed -n 's/.*Ver \([0-9.]*\)-MariaDB.*/\1/p'
}

mariadb_will_do() {
  local found
  found="$(mariadb_version_of "$1")"
  [[ -n "$found" ]] && [[ "$(printf '%s\n' "$found" "$OLDEST_MARIADB" | sort -V | head -n 1)" == "$OLDEST_MARIADB" ]]
}

bring_pgbouncer() {
  local path
  WANTED="pgbouncer" DEBIAN="pgbouncer" FEDORA="pgbouncer" BREW="pgbouncer"
  "$BIN/pgbouncer" --version >/dev/null 2>&1 && { say "pgbouncer is there"; return 0; }
  if path="$(PATH="$PATH:/usr/sbin" on_this_machine pgbouncer)"; then
    ln -sfn "$path" "$BIN/pgbouncer"
    say "pgbouncer, this machine's own"
    return 0
  fi
  need_apt
  need_lists pgbouncer
  unpack_postgresql pgbouncer
  wrap_relative "$UNPACKED/usr/sbin/pgbouncer"
  "$BIN/pgbouncer" --version >/dev/null 2>&1 || missing_server "the unpacked pgbouncer does not start"
  say "$("$BIN/pgbouncer" --version | head -n 1), unpacked under .servers"
}

# The server alone; galera-4 is what a cluster of it loads.
bring_mariadb() {
  local name
  local -A seen=()
  WANTED="MariaDB >= $OLDEST_MARIADB" DEBIAN="mariadb-server" FEDORA="mariadb-server" BREW="mariadb"
  mariadb_will_do "$BIN/mariadbd" && { say "mariadb $(mariadb_version_of "$BIN/mariadbd") is there"; return 0; }
  if mariadb_will_do /usr/sbin/mariadbd; then
    ln -sfn /usr/sbin/mariadbd "$BIN"
    say "mariadb $(mariadb_version_of "$BIN/mariadbd"), this machine's own"
    return 0
  fi
  need_apt
  need_lists mariadb-server-core
  for name in mariadb-server-core galera-4; do unpack "$name"; done
  wrap_relative "$UNPACKED/usr/sbin/mariadbd"
  mariadb_will_do "$BIN/mariadbd" || missing_server "the unpacked server does not start or is older than $OLDEST_MARIADB"
  say "mariadb $(mariadb_version_of "$BIN/mariadbd"), unpacked under .servers"
}

bring_promtool() {
  local path
  WANTED="promtool" DEBIAN="prometheus" FEDORA="prometheus" BREW="prometheus"
  "$BIN/promtool" --version >/dev/null 2>&1 && { say "promtool is there"; return 0; }
  if path="$(on_this_machine promtool)"; then
    ln -sfn "$path" "$BIN/promtool"
    say "promtool, this machine's own"
    return 0
  fi
  need_apt
  need_lists prometheus
  download prometheus
  # One program of a large package.
  dpkg-deb --fsys-tarfile "$SERVERS"/debs/prometheus_*.deb | tar -x -C "$UNPACKED" ./usr/bin/promtool
  ln -sfn "$UNPACKED/usr/bin/promtool" "$BIN/promtool"
  "$BIN/promtool" --version >/dev/null 2>&1 || missing_server "the unpacked promtool does not start"
  say "promtool, unpacked under .servers"
}

# -- a browser, for the tests of the page; it is large, so only `make test-all` brings it

bring_chromium() {
  local path
  WANTED="chromium" DEBIAN="chromium-headless-shell" FEDORA="chromium-headless" BREW="chromium"
  "$BIN/chromium" --version >/dev/null 2>&1 && { say "$("$BIN/chromium" --version) is there"; return 0; }
  for path in chromium-headless-shell chromium; do
    path="$(on_this_machine "$path")" || continue
    ln -sfn "$path" "$BIN/chromium"
    say "$("$BIN/chromium" --version), this machine's own"
    return 0
  done
  need_apt
  need_lists chromium-headless-shell
  declare -A seen=()
  # Not beside the servers, of which tests make copies.
  UNPACKED="$SERVERS/browser"
  mkdir -p "$UNPACKED"
  unpack chromium-headless-shell
  unpack chromium-common
  unpack fonts-dejavu-core
  wrap_relative "$UNPACKED/usr/lib/chromium/chromium-headless-shell" chromium
  # A machine without a desktop has neither fonts nor a word on where they are.
  printf '<fontconfig><dir>%s</dir><cachedir>%s</cachedir></fontconfig>\n' \
    "$UNPACKED/usr/share/fonts" "$SERVERS/fonts" >"$SERVERS/fonts.conf"
  "$BIN/chromium" --version >/dev/null 2>&1 || missing_server "the unpacked chromium does not start"
  say "$("$BIN/chromium" --version), unpacked under .servers"
}

mkdir -p "$BIN" "$SERVERS/debs" "$UNPACKED"
# No servers, and large: only `make test-all` asks for them.
case "${1:-}" in
  promtool) bring_promtool; exit ;;
  browser) bring_chromium; exit ;;
esac
bring_redis
bring_valkey
bring_etcd
bring_postgresql
bring_pgbouncer
bring_mariadb
