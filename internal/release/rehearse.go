package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/dibs-go/dibs/internal/servertest"
)

// uses has a program for each library that uses it.
//
//go:embed testdata/*.txt
var uses embed.FS

// program is the module that is installed, not imported: the README says how.
const program = "cmd/dibs"

// rehearse does with every module what people will do: each library is got by a new
// module whose program is compiled and run, against real servers; then the README's lines
// are run, and the installed program says its version.
func (r *release) rehearse(ctx context.Context) error {
	servers := servertest.NewScope()
	defer servers.Close()
	r.env = append(r.env,
		"GOMODCACHE="+filepath.Join(r.scratch, "empty"),
		"REDIS="+servertest.Redis(servers, nil).URL(), "POSTGRES="+servertest.Postgres(servers, nil).URL(), "MYSQL="+servertest.MariaDB(servers, nil).URL(),
	)
	for _, m := range r.modules {
		if m.dir == program || strings.HasPrefix(m.dir, "internal/") {
			continue // the README's lines need both
		}
		if err := r.get(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	return r.readme(ctx)
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

// getIt is how the README says that people get it.
var getIt = regexp.MustCompile("(?s)\n## Get it\n\n```sh\n(.*?)```")

// readme runs the README's lines in a new module, and asks the installed program for its
// version.
func (r *release) readme(ctx context.Context) error {
	page, err := os.ReadFile(filepath.Join(r.clone, "README.md"))
	if err != nil {
		return err
	}
	lines := getIt.FindSubmatch(page)
	if lines == nil {
		return errors.New(`README.md has no lines of sh under "Get it"`)
	}
	dir, err := os.MkdirTemp(r.scratch, "user")
	if err != nil {
		return err
	}
	script := "go mod init example.com/user\n" + string(lines[1]) + "./dibs version\n"
	said, err := output(ctx, dir, append(r.env, "GOBIN="+dir), "sh", "-ec", script)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(said, "dibs "+r.version+" ") {
		return fmt.Errorf("the installed program says %q, want dibs %s", said, r.version)
	}
	return nil
}
