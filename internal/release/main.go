// Command release makes a release of every module and of the clients of other languages, in a
// clone of the repository, and tries it: everything that users will download is built, downloaded into an empty module
// cache, compiled and run. It pushes nothing; its last line says how to.
//
//	go run ./internal/release -version v0.1.0 -dir bin/release
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/mod/semver"
)

func main() {
	version := flag.String("version", "", "the `VERSION` to release, as v0.1.0")
	dir := flag.String("dir", "bin/release", "the `FOLDER` for the clone and the module files; it must not exist yet")
	flag.Parse()
	if err := run(*version, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(version, dir string) (err error) {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("-version %q: a version is written v0.1.0", version)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists: remove it, or name another folder with -dir", dir)
	}
	changed, err := output(ctx, ".", nil, "git", "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("commit these first, only what is committed is released:\n%s", changed)
	}
	repository, err := output(ctx, ".", nil, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir) // what it has may look like a release
		}
	}()
	r, err := prepare(ctx, repository, dir, version)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.tryOut(ctx); err != nil {
		return err
	}
	if err := r.makeDownloads(ctx); err != nil {
		return err
	}
	fmt.Printf("%s of %d modules is in %s, and was tried. To publish it:\n  git -C %s push --atomic REMOTE %s\nThen take its README.md to the branch, because it says go get.\nThe files to put beside it are in %s.\n", version, len(r.modules), dir, r.clone, strings.Join(r.tags(), " "), r.downloads)
	return nil
}
