#!/bin/sh
# One step inside a clean root, called by roots.py; packages, wheel and train.py lie in /opt/cgx.   in_root.sh STEP
set -eu
cd /opt/cgx
export DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8
packages=/usr/lib/python3/dist-packages

as() {  # as USER COMMAND...: with nothing of the environment
  user=$1
  shift
  setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 "$@"
}
user() { id "$1" >/dev/null 2>&1 || useradd --create-home "$1"; }
installed() { apt-get install -y -q --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { tail -20 /tmp/apt.log; exit 1; }; }
fail() { echo "$*"; exit 1; }

case $1 in
  install_all) installed ./cgxd_*.deb ./libcgx0_*.deb ./libcgx-dev_*.deb ./python3-cgx_*.deb ;;
  install_client) installed ./libcgx0_*.deb ./libcgx-dev_*.deb ./python3-cgx_*.deb ;;
  service)  # as the unit starts it: user cgxd, group cgx; alice may train, bob is told why not
    user alice
    user bob
    usermod -aG cgx alice
    install -d -m 755 -o cgxd -g cgx /run/cgxd
    setpriv --reuid cgxd --regid cgx --clear-groups cgxd --config /etc/cgxd/cgxd.yaml \
      --set run_directory=/run/cgxd 2>/tmp/cgxd.log &
    daemon=$!
    for _ in $(seq 100); do [ -S /run/cgxd/cgxd.sock ] && break || sleep 0.1; done
    as alice python3 train.py | grep "from $packages/cgx" || { cat /tmp/cgxd.log; fail "alice, in group cgx, cannot train"; }
    as alice cgxctl status >/dev/null
    if as bob python3 train.py >/tmp/bob.log 2>&1; then fail "bob, not in group cgx, can train"; fi
    grep -q "may not use the daemon at /run/cgxd/cgxd.sock .*be a member of its group cgx" /tmp/bob.log ||
      { cat /tmp/bob.log; fail "bob is not told why"; }
    kill "$daemon"
    wait "$daemon" || fail "cgxd ended with $?"
    ;;
  purge)
    apt-get purge -y -q cgxd libcgx0 libcgx-dev python3-cgx >/tmp/apt.log 2>&1 || { tail -20 /tmp/apt.log; exit 1; }
    for left in /etc/cgxd $packages/cgx /usr/lib/libcgx.so.0 /usr/include/cgx; do [ ! -e $left ] || fail "$left is left"; done
    ;;
  install_wheel)
    python3 -m venv --system-site-packages /opt/venv  # for the root's NumPy
    /opt/venv/bin/pip install -q --no-index ./cgx-*.whl
    ;;
  wheel)  # no daemon, no configuration: the first rank starts one
    user alice
    as alice /opt/venv/bin/cgxctl --version | grep '^cgxctl '
    as alice /opt/venv/bin/cgxd --version | grep '^cgxd '
    as alice CGX_AUTOSTART=1 /opt/venv/bin/python train.py | grep 'from /opt/venv/'
    ;;
  client)  # the Debian packages of libcgx and Python with a daemon from elsewhere
    user alice
    cgxd=$(echo /opt/venv/lib/python3*/site-packages/cgx/cgxd)
    as alice CGX_AUTOSTART=1 CGXD="$cgxd" python3 train.py | grep "from $packages/cgx"
    ;;
  *) fail "unknown step '$1'" ;;
esac
