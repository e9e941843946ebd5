# Fetches a kernel of Debian into the folder $1: `boot/vmlinuz-VERSION`, `lib/modules/VERSION` and a file with the version.
# $2 is the line of a source list. apt uses a separate folder, so that the system does not change.
work=$1.fetch
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/tree/boot" "$work/tree/lib"
cd "$work"
echo "$2" > sources.list
: > status
export APT_CONFIG=$work/apt.conf
cat > apt.conf <<END
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "$work";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
END
apt-get -q update
# The first package only depends on the kernel. The one of sid is split in two more.
needs() { apt-cache depends --important "$1" | sed -nE "s/^ *Depends: (linux-($2)-[0-9].*)/\1/p"; }
image=$(needs linux-image-amd64 image | head -n 1)
apt-get -q download "$image" $(needs "$image" 'binary|modules')
for package in *.deb; do dpkg -x "$package" unpacked; done
mv unpacked/lib/modules tree/lib || mv unpacked/usr/lib/modules tree/lib
version=$(ls tree/lib/modules)
mv "unpacked/boot/vmlinuz-$version" tree/boot || mv "tree/lib/modules/$version/vmlinuz" "tree/boot/vmlinuz-$version"
# Newer packages lack `modules.order` and `modules.builtin`. depmod warns about that, but needs neither.
PATH=$PATH:/usr/sbin:/sbin depmod -b "$work/tree" "$version"
echo "$version" > tree/VERSION
rm -rf "$1"
mv tree "$1"
rm -rf "$work"
