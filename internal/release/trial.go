package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// uses has a program for each library that uses it.
//
//go:embed testdata/*.txt
var uses embed.FS

// program is the module of the program dibs. The README says how to install it.
const program = "cmd/dibs"

// isProgram reports whether the module is installed, not imported.
func isProgram(m sibling) bool { return strings.HasPrefix(m.dir, "cmd/") }

// tryOut uses every module as users will: a new module requires each library, and its program
// is compiled and run, against real servers. Each program is
// installed, and says its version. Then the README's lines are run.
func (r *release) tryOut(ctx context.Context) error {
	if err := servertest.InstallPackagers(); err != nil { // now, and not after all that is built
		return err
	}
	servers := servertest.NewScope()
	defer servers.Close()
	r.env = append(r.env,
		"GOMODCACHE="+filepath.Join(r.scratch, "empty"),
		"REDIS="+servertest.Redis(servers, nil).URL(), "POSTGRES="+servertest.Postgres(servers, nil).URL(), "MYSQL="+servertest.MariaDB(servers, nil).URL(),
		"ETCD="+servertest.Etcd(servers, nil).URL(),
	)
	for _, m := range r.modules {
		if strings.HasPrefix(m.dir, "internal/") {
			continue // the programs need it
		}
		try := r.get
		if isProgram(m) {
			try = r.install
		}
		if err := try(ctx, m); err != nil {
			return fmt.Errorf("%s: %w", m.path(), err)
		}
	}
	return r.readme(ctx)
}

// get requires the module in a new one, and runs a program there that uses it.
func (r *release) get(ctx context.Context, m sibling) error {
	source, err := uses.ReadFile("testdata/" + path.Base(m.path()) + ".txt")
	if err != nil {
		return fmt.Errorf("no program of testdata uses it: %w", err)
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

// install installs the program, and asks it for its version.
func (r *release) install(ctx context.Context, m sibling) error {
	dir, err := os.MkdirTemp(r.scratch, "user")
	if err != nil {
		return err
	}
	if _, err := output(ctx, dir, append(r.env, "GOBIN="+dir), "go", "install", m.path()+"@"+r.version); err != nil {
		return err
	}
	return r.says(ctx, filepath.Join(dir, path.Base(m.dir)))
}

// says checks that the installed program says the release's version.
func (r *release) says(ctx context.Context, binary string) error {
	name := filepath.Base(binary)
	said, err := output(ctx, ".", nil, binary, "--version")
	if err == nil && !strings.HasPrefix(said, name+" "+r.version) {
		err = fmt.Errorf("it says %q, want %s %s", said, name, r.version)
	}
	return err
}

// readme runs the README's lines, each in a new module with a program: those that the commit has
// until a version is tagged, with a clone of it, and those of the release.
func (r *release) readme(ctx context.Context) error {
	tagged, err := installLines(r.clone)
	if err != nil {
		return err
	}
	source, err := uses.ReadFile("testdata/sqlitestore.txt")
	if err != nil {
		return err
	}
	for _, lines := range []string{r.untagged, tagged} {
		dir, err := os.MkdirTemp(r.scratch, "user")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "main.go"), source, 0o644); err != nil {
			return err
		}
		env := append(r.env[:len(r.env):len(r.env)], "GOBIN="+filepath.Join(dir, "bin"), "GOWORK=",
			"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url."+r.repository+".insteadOf", "GIT_CONFIG_VALUE_0=https://"+root)
		script := "go mod init example.com/user\n" + lines + "go run .\nbin/dibs --version\n"
		if _, err := output(ctx, dir, env, "sh", "-ec", script); err != nil {
			return err
		}
	}
	return nil
}
