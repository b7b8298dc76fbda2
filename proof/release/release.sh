#!/usr/bin/env bash
# release.sh REPOSITORY VERSION FOLDER makes a release of a commit, the repository's HEAD, in a new
# folder. FOLDER/clone gets a commit with a tag for each module, and FOLDER/downloads the files to
# publish with it. The same commit makes the same files. It pushes nothing.
set -euo pipefail
umask 022
repository=$(realpath "$1") version=$2 folder=$(realpath -m "$3")
root=github.com/dibs-go/dibs
fail() { echo "release: $*" >&2; exit 1; }
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$ ]] || fail "\"$version\" is not a version such as v0.1.0"
[[ ! -e $folder ]] || fail "$folder exists: remove it, or name another folder"
scratch=$(mktemp -d)
# What a failed release leaves may look like a release.
trap 'status=$?; rm -rf "$scratch"; [[ $status = 0 ]] || rm -rf "$folder"; exit $status' EXIT
downloads=$folder/downloads clone=$folder/clone here=$(go env GOOS GOARCH | paste -sd /)
mkdir -p "$downloads"

# The commit: every module requires its siblings at the version, and the README says go get.
git clone --quiet "$repository" "$clone"
cd "$clone"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH GIT_AUTHOR_DATE="@$SOURCE_DATE_EPOCH +0000" GIT_COMMITTER_DATE="@$SOURCE_DATE_EPOCH +0000"
modules=$(go list -m)
for dir in $(go list -m -f '{{.Dir}}'); do
  # shellcheck disable=SC2046,SC2086
  go mod edit $(printf -- '-dropreplace=%s ' $modules) "$dir/go.mod"
  sed -i "s|\($root[^ ]*\) v0\.0\.0\b|\1 $version|" "$dir/go.mod"
done
git grep -lz '"0\.0\.0"' clients | xargs -0 sed -i "s/\"0\.0\.0\"/\"${version#v}\"/"
sed -i -e '/^## Get it$/,/^## /{/^## Get it$/{r proof/release/getit.md' -e 'd};/^## /!d}' README.md

# From here on the modules come from the tags, and nothing of ours from this machine. The modules of
# others come from this machine's cache as far as it has them.
GOBIN=$scratch/tools go install -trimpath github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0
GOPROXY="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
git config --file "$scratch/gitconfig" "url.$clone.insteadOf" "https://$root"
export GOPROXY GONOPROXY=$root GONOSUMDB=$root GOENV=off GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0 \
  GOFLAGS="-trimpath -modcacherw" GOMODCACHE=$scratch/modules GOPATH=$scratch/gopath

# Each module is tagged after those that it requires, because its go.sum has their sums. In the end all
# tags are at one commit.
git commit --quiet --all --message "release $version"
requires() {
  for m in $modules; do
    echo "$m $m"
    sed -n "s|^[^/]*\($root[^ ]*\) v.*|\1 $m|p" "$clone/${m#"$root"}/go.mod"
  done
}
tags=()
for m in $(requires | tsort); do
  dir=${m#"$root"}
  GIT_CONFIG_GLOBAL=$scratch/gitconfig go -C "$clone/$dir" mod tidy
  git commit --quiet --all --amend --no-edit
  [[ $m = $root/examples ]] || tags+=("${dir:+${dir#/}/}$version")
  [[ $m = $root/examples ]] || git tag "${tags[-1]}"
done
for tag in "${tags[@]}"; do git tag --force "$tag" >/dev/null; done
export GIT_CONFIG_GLOBAL=$scratch/gitconfig

# licences prints the licences of everything in a program that is not ours. A module without one is an
# error, because nothing says then that its code may be passed on.
licences() {
  echo "The program contains Go's standard library and these modules, under their own licences."
  printf '\n==== %s: LICENSE\n\n' "$(go env GOVERSION)"
  cat "$(go env GOROOT)/LICENSE"
  go version -m "$1" | awk -v ours="$root" '$1 == "dep" && index($2, ours) != 1 { print $2 "@" $3 }' | while read -r m; do
    dir=$(go mod download -json "$m" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    files=$(cd "$dir" && find . -name testdata -prune -o -type f -regextype posix-extended \
      -iregex '.*/[^./]*(licen[cs]e|copying|notice|patents)[^./]*(\.txt|\.md)?' -print | LC_ALL=C sort)
    [[ -n $files ]] || fail "$m has no licence"
    for file in $files; do
      printf '\n==== %s: %s\n\n' "$m" "${file#./}"
      cat "$dir/$file"
    done
  done
}

# build installs a program for a system, as its users will, into the folder bin of a tree.
build() {
  rm -rf "$GOPATH/bin"
  GOOS=${2%/*} GOARCH=${2#*/} go install -ldflags="-s -w" "$root/cmd/$1@$version"
  mkdir -p "$3/bin"
  find "$GOPATH/bin" -type f -exec mv {} "$3/bin/" \;
}

build dibs "$here" "$scratch/here"
texts=$scratch/texts/share dibs=$scratch/here/bin/dibs
mkdir -p "$texts"/{man/man1,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d,powershell}
"$dibs" man >"$texts/man/man1/dibs.1"
"$dibs" completion bash >"$texts/bash-completion/completions/dibs"
"$dibs" completion zsh >"$texts/zsh/site-functions/_dibs"
"$dibs" completion fish >"$texts/fish/vendor_completions.d/dibs.fish"
"$dibs" completion powershell >"$texts/powershell/dibs.ps1"

for program in dibs dibs-prove; do
  for system in {linux,darwin,windows}/{amd64,arm64}; do
    # dibs-prove stops and kills processes by signals, which Windows does not have.
    [[ $program = dibs || $system != windows/* ]] || continue
    name=${program}_${version}_${system/\//_}
    tree=$scratch/trees/$name doc=$scratch/trees/$name/share/doc/$program
    build "$program" "$system" "$tree"
    mkdir -p "$doc"
    cp LICENSE "$doc/"
    licences "$tree"/bin/* >"$doc/LICENSES.txt"
    [[ $program != dibs ]] || cp -R "$scratch/texts/." "$tree/"
    # Scanners know the standard library by the name that Go's vulnerability database has.
    "$scratch/tools/cyclonedx-gomod" bin -json -std -noserial -notimestamp "$tree"/bin/* |
      sed -E -e 's|(golang/)std@go|\1stdlib@|' -e 's|("name": ")std"|\1stdlib"|' -e 's|("version": ")go([0-9])|\1\2|' >"$downloads/$name.cdx.json"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$scratch/trees" -c "$name" |
      gzip -n >"$downloads/$name.tar.gz"
  done
done

# The clients' packages, by the languages' own tools.
for dir in clients/*/; do cp LICENSE "$dir"; done
gem build -C clients/ruby dibs.gemspec
mv clients/ruby/dibs-*.gem "$downloads"
/usr/bin/python3 -m pip wheel --no-deps --no-index --wheel-dir "$downloads" ./clients/python
npm pack --pack-destination "$downloads" ./clients/js
(cd "$downloads" && sha256sum -- * >"$scratch/sums" && mv "$scratch/sums" SHA256SUMS)
echo "$version of ${#tags[@]} modules is in $folder. To publish it:"
echo "  git -C $clone push --atomic REMOTE ${tags[*]}"
