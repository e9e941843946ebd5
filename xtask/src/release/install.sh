# Installs a .deb in a clean Debian, and runs the command of its unit. Runs in its own mount namespace.
#   $1 the suite   $2 a mirror   $3 the .deb
root=$(mktemp --directory)
mount -t tmpfs tmpfs "$root"
debootstrap --variant=minbase "$1" "$root" "$2" > "$root.log" || { tail "$root.log"; exit 1; }
rm "$root.log"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
cp "$3" "$root/tmp/tracer.deb"
inside() { unshare --net chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
inside dpkg --install /tmp/tracer.deb
unit=$(inside dpkg --listfiles tracer | grep '/tracer\.service$')
inside $(sed -n 's/^ExecStart=//p' "$root$unit") --no-api --duration 2s -o json > "$root/tmp/records"
grep --quiet '"type":"stop"' "$root/tmp/records"
inside dpkg --purge tracer
! inside test -e /usr/bin/tracer
