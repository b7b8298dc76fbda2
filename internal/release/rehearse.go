package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/dibs-go/dibs/internal/servertest"
)

// uses has a program for each library that uses it.
//
//go:embed testdata/*.txt
var uses embed.FS

// program is the module that is installed, not imported.
const program = "cmd/dibs"

// rehearse does with every module what people will do: each library is got by a new
// module whose program is compiled and run, against real servers; the program is
// installed, and says its version.
func (r *release) rehearse(ctx context.Context) error {
	servers := servertest.NewScope()
	defer servers.Close()
	r.env = append(r.env,
		"GOMODCACHE="+filepath.Join(r.scratch, "empty"),
		"REDIS="+servertest.Redis(servers, nil).URL(), "POSTGRES="+servertest.Postgres(servers, nil).URL(), "MYSQL="+servertest.MariaDB(servers, nil).URL(),
	)
	for _, m := range r.modules {
		if m.dir == program {
			continue
		}
		if err := r.get(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	return r.install(ctx)
}

// get requires the module in a new one, and runs a program there that uses it.
func (r *release) get(ctx context.Context, m sibling) error {
	source, err := uses.ReadFile("testdata/" + path.Base(m.path()) + ".txt")
	if err != nil {
		return fmt.Errorf("no program uses it in the rehearsal: %w", err)
	}
	dir, err := os.MkdirTemp(r.scratch, "user")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), source, 0o644); err != nil {
		return err
	}
	for _, arguments := range [][]string{{"mod", "init", "example.com/user"}, {"get", m.path() + "@" + r.version}, {"mod", "tidy"}, {"run", "."}} {
		if _, err := output(ctx, dir, r.env, "go", arguments...); err != nil {
			return err
		}
	}
	return nil
}

// install installs the program as people do, and asks for its version.
func (r *release) install(ctx context.Context) error {
	bin := filepath.Join(r.scratch, "bin")
	if _, err := output(ctx, r.scratch, append(r.env, "GOBIN="+bin), "go", "install", path.Join(root, program)+"@"+r.version); err != nil {
		return err
	}
	said, err := output(ctx, bin, nil, filepath.Join(bin, path.Base(program)), "version")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(said, "dibs "+r.version+" ") {
		return fmt.Errorf("the installed program says %q, want dibs %s", said, r.version)
	}
	return nil
}
