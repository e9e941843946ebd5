# Makes all files of a release except the image, in the folder $OUT. release.rs sets the variables.
parts=$PARTS
sorted_tar() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=a=rX,u+w --create "$@"
}

# Both tools write next to the sources that they read, so they get a copy.
rm -rf "$parts" && mkdir -p "$parts/source"
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$parts/source"
cargo about generate --fail --locked --manifest-path "$parts/source/tracer-userspace/Cargo.toml" \
    --config about.toml xtask/src/release/licences.hbs > "$parts/THIRD-PARTY.md"
cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --target x86_64-unknown-linux-musl \
    --manifest-path "$parts/source/tracer-userspace/Cargo.toml"
sed "s,$PWD/$parts/source,,g" "$parts/source/tracer-userspace/tracer-userspace.cdx.json" > "$OUT/tracer-$VERSION.cdx.json"

# The metadata in tracer-userspace/Cargo.toml names this folder.
stage=target/package
for architecture in amd64 arm64; do
    case $architecture in
        amd64) program=$AMD64 target=x86_64-unknown-linux-musl strip=strip ;;
        arm64) program=$ARM64 target=aarch64-unknown-linux-gnu strip=aarch64-linux-gnu-strip ;;
    esac
    rm -rf "$stage" && mkdir -p "$stage/man" "$stage/completions"
    "$strip" -o "$stage/tracer" "$program"
    cp README.md CHANGELOG.md LICENSE-* "$parts/THIRD-PARTY.md" "$stage"
    "$AMD64" man > "$stage/man/tracer.1"
    for command in $(sed -n 's/^tracer\\-\([a-z]*\)(1)$/\1/p' "$stage/man/tracer.1"); do
        "$AMD64" man "$command" > "$stage/man/tracer-$command.1"
    done
    "$AMD64" completions bash > "$stage/completions/tracer.bash"
    "$AMD64" completions zsh > "$stage/completions/_tracer"
    "$AMD64" completions fish > "$stage/completions/tracer.fish"
    sorted_tar --directory="$stage" . | gzip -9n > "$OUT/tracer-$VERSION-linux-$architecture.tar.gz"

    gzip -9n "$stage"/man/*
    tree=$parts/$architecture
    install -D --mode=755 "$stage/tracer" "$tree/usr/bin/tracer"
    install -D --mode=644 --target-directory="$tree/usr/share/man/man1" "$stage"/man/*
    install -D --mode=644 "$stage/completions/tracer.bash" "$tree/usr/share/bash-completion/completions/tracer"
    install -D --mode=644 "$stage/completions/_tracer" "$tree/usr/share/zsh/vendor-completions/_tracer"
    install -D --mode=644 "$stage/completions/tracer.fish" "$tree/usr/share/fish/vendor_completions.d/tracer.fish"
    install -D --mode=644 deploy/systemd/tracer.service "$tree/usr/lib/systemd/system/tracer.service"
    install -D --mode=600 deploy/systemd/tracer.env "$tree/etc/tracer/tracer.env"
    install -D --mode=644 --target-directory="$tree/usr/share/doc/tracer" "$stage"/*.md "$stage"/LICENSE-*
    cp -r deploy/debian "$tree/DEBIAN"
    sed "s,VERSION,$VERSION,; s,ARCHITECTURE,$architecture," deploy/debian/control > "$tree/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$tree" "$OUT/tracer_$VERSION-1_$architecture.deb"
    cargo generate-rpm --package tracer-userspace --target "$target" --output "$OUT/"
    # The .rpm has the files of the .deb, some of them in other folders.
    rpm --query --dump --package "$OUT/tracer-$VERSION-1.${target%%-*}.rpm" |
        while read -r file _ _ digest _; do echo "$digest ${file##*/}"; done | sort > "$parts/rpm.txt"
    (cd "$tree" && find etc usr -type f -exec sha256sum {} +) | sed 's,  .*/, ,' | sort | diff "$parts/rpm.txt" -

    for object in ebpf ebpf.typed; do
        file="$OUT/tracer-$VERSION-$(echo "$object" | tr . -)-$architecture"
        llvm-objcopy --output-target=binary --only-section=".tracer.$object" "$stage/tracer" "$parts/$object.o"
        install -m 644 "$parts/$object.o" "$file.o"
        llvm-objdump --disassemble --no-show-raw-insn "$parts/$object.o" | sed '/file format/d' | gzip -9n > "$file.txt.gz"
    done
done

# `helm package` writes the current time into the archive, so it is packed again.
helm package deploy/chart --destination "$parts" > "$parts/helm.log"
mkdir "$parts/chart" && tar --extract --file="$parts/tracer-$VERSION.tgz" --directory="$parts/chart"
sorted_tar --directory="$parts/chart" tracer | gzip -9n > "$OUT/tracer-chart-$VERSION.tgz"
helm lint --quiet "$OUT/tracer-chart-$VERSION.tgz"

digest() { sha256sum < "$OUT/tracer-$VERSION-linux-$1.tar.gz" | cut -d ' ' -f 1; }
sed "s,REPOSITORY,$REPOSITORY,; s,VERSION,$VERSION,g; s,SHA256-amd64,$(digest amd64),; s,SHA256-arm64,$(digest arm64)," \
    deploy/krew/tracer.yaml > "$OUT/krew.yaml"

cd "$OUT"
sha256sum -- * > "../SHA256SUMS" && mv "../SHA256SUMS" .
