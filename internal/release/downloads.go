package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// target is a system that programs are built for.
type target struct{ os, arch string }

// targets are the systems of the downloads.
var targets = []target{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// here is this machine's system.
var here = target{runtime.GOOS, runtime.GOARCH}

// runsOn reports whether the program can be built for the target. The torture stops and
// kills processes by signals, which Windows does not have.
func runsOn(m sibling, t target) bool { return m.dir == program || t.os != "windows" }

// download is a program for one system: an archive and its SBOM.
type download struct {
	name          string    // as dibs_v0.1.0_linux_amd64
	binary        string    // the path of the built program
	goroot, cache string    // have the licences of what it contains
	when          time.Time // the time of the files in the archive
}

// makeDownloads builds each program for each target and packs it, and makes the packages of the
// clients. It tries the archives for this machine, and the packages. SHA256SUMS has the checksums
// of all files.
func (r *release) makeDownloads(ctx context.Context) error {
	if err := os.Mkdir(r.downloads, 0o755); err != nil {
		return err
	}
	for _, m := range r.modules {
		if !isProgram(m) {
			continue
		}
		texts, err := r.texts(ctx, m)
		if err != nil {
			return err
		}
		for _, t := range targets {
			if !runsOn(m, t) {
				continue
			}
			if err := r.pack(ctx, m, t, texts); err != nil {
				return fmt.Errorf("%s for %s/%s: %w", m.path(), t.os, t.arch, err)
			}
		}
	}
	dibs, err := r.build(ctx, sibling{dir: program}, here)
	if err != nil {
		return err
	}
	if err := r.makePackages(ctx, dibs); err != nil {
		return err
	}
	return checksums(r.downloads)
}

// makePackages makes the packages of the clients, and tries them with the program dibs.
func (r *release) makePackages(ctx context.Context, dibs string) error {
	for _, c := range clients {
		if err := r.downloadClient(ctx, &c, dibs); err != nil {
			return fmt.Errorf("%s: %w", c.dir, err)
		}
	}
	return nil
}

// pack makes the download of the program for the target.
func (r *release) pack(ctx context.Context, m sibling, t target, texts []packed) error {
	binary, err := r.build(ctx, m, t)
	if err != nil {
		return err
	}
	values, err := output(ctx, r.clone, r.env, "go", "env", "GOROOT", "GOMODCACHE")
	if err != nil {
		return err
	}
	when, err := r.committed(ctx)
	if err != nil {
		return err
	}
	d := download{name: strings.Join([]string{path.Base(m.dir), r.version, t.os, t.arch}, "_"), binary: binary, when: when}
	d.goroot, d.cache, _ = strings.Cut(values, "\n")
	files, bill, err := d.files(texts)
	if err != nil {
		return err
	}
	if err := d.write(r.downloads, files, bill); err != nil {
		return err
	}
	if t != here {
		return nil
	}
	return r.unpack(ctx, m, d.name)
}

// committed is the time of the release's commit.
func (r *release) committed(ctx context.Context) (time.Time, error) {
	text, err := output(ctx, r.clone, nil, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	return time.Unix(seconds, 0), err
}

// build installs the program at its version for the target, and returns its path.
func (r *release) build(ctx context.Context, m sibling, t target) (string, error) {
	gopath := filepath.Join(r.scratch, "gopath")
	env := append(r.env[:len(r.env):len(r.env)], "GOPATH="+gopath, "GOBIN=", "GOOS="+t.os, "GOARCH="+t.arch)
	if _, err := output(ctx, r.scratch, env, "go", "install", "-ldflags=-s -w", m.path()+"@"+r.version); err != nil {
		return "", err
	}
	name := path.Base(m.dir)
	if t.os == "windows" {
		name += ".exe"
	}
	if t == here {
		return filepath.Join(gopath, "bin", name), nil
	}
	return filepath.Join(gopath, "bin", t.os+"_"+t.arch, name), nil
}

// texts are the files of the program's archives that are the same for every target.
func (r *release) texts(ctx context.Context, m sibling) ([]packed, error) {
	licence, err := os.ReadFile(filepath.Join(r.clone, "LICENSE"))
	if err != nil {
		return nil, err
	}
	texts := []packed{{"share/doc/" + path.Base(m.dir) + "/LICENSE", licence, 0o644}}
	if m.dir != program {
		return texts, nil
	}
	binary, err := r.build(ctx, m, here)
	if err != nil {
		return nil, err
	}
	printed, err := printedBy(ctx, binary)
	return append(texts, printed...), err
}

// printedBy returns the manual page and the completions of shells, which the program prints.
// Each has the name under which a system finds it in /usr/local.
func printedBy(ctx context.Context, binary string) (files []packed, err error) {
	for _, f := range [][]string{
		{"share/man/man1/dibs.1", "man"},
		{"share/bash-completion/completions/dibs", "completion", "bash"},
		{"share/zsh/site-functions/_dibs", "completion", "zsh"},
		{"share/fish/vendor_completions.d/dibs.fish", "completion", "fish"},
		{"share/powershell/dibs.ps1", "completion", "powershell"},
	} {
		text, err := output(ctx, ".", nil, binary, f[1:]...)
		if err != nil {
			return nil, err
		}
		files = append(files, packed{f[0], []byte(text + "\n"), 0o644})
	}
	return files, nil
}

// files returns what the archive has, and the SBOM.
func (d *download) files(texts []packed) (files []packed, bill []byte, err error) {
	text, err := os.ReadFile(d.binary)
	if err != nil {
		return nil, nil, err
	}
	info, err := buildinfo.ReadFile(d.binary)
	if err != nil {
		return nil, nil, err
	}
	if bill, err = sbom(info, fmt.Sprintf("%x", sha256.Sum256(text))); err != nil {
		return nil, nil, err
	}
	others, err := licences(info, d.goroot, d.cache)
	if err != nil {
		return nil, nil, err
	}
	name := filepath.Base(d.binary)
	return append([]packed{
		{"bin/" + name, text, 0o755},
		{"share/doc/" + strings.TrimSuffix(name, ".exe") + "/LICENSES.txt", others, 0o644},
	}, texts...), bill, nil
}

// write writes the archive and the SBOM into the folder.
func (d *download) write(dir string, files []packed, bill []byte) error {
	if err := os.WriteFile(filepath.Join(dir, d.name+".cdx.json"), bill, 0o644); err != nil {
		return err
	}
	return archive(filepath.Join(dir, d.name+".tar.gz"), d.name, files, d.when)
}

// unpack installs the program from its archive as docs/start/install.md says, and asks it for
// its version.
func (r *release) unpack(ctx context.Context, m sibling, name string) error {
	dir, err := os.MkdirTemp(r.scratch, "user")
	if err != nil {
		return err
	}
	if _, err := output(ctx, r.downloads, nil, "tar", "-xzf", name+".tar.gz", "--strip-components=1", "-C", dir); err != nil {
		return err
	}
	return r.says(ctx, filepath.Join(dir, "bin", path.Base(m.dir)))
}

// checksums writes SHA256SUMS, which sha256sum --check reads.
func checksums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(text), f.Name())
	}
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
