//go:build unix

package servertest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A program is a program of a database server, as distributions ship it.
type program struct {
	// names are its file names, the best first.
	names []string
	// places are folders to look in besides PATH; they may be patterns.
	places []string
	// not is another program with the same names, to which such a file may be a link.
	not string
	// pkg is its Debian package.
	pkg string
	// with are packages that are missing, too, because each call of apt-get takes seconds.
	with []string
	// backported says that some Debian releases have it only in their backports.
	backported bool
	// env is a variable with the path to use instead.
	env string
	// settings are files to write before the package is installed, unless they exist.
	settings map[string]string
	// service is what the package would start with the system.
	service string
	// unpacking is another way to get it; nil: none.
	unpacking *unpacking
}

// An installer installs packages with apt-get.
type installer struct {
	root   bool   // may install
	policy string // Debian's policy for starting services
	lock   string // keeps test binaries from installing at once
}

// apt is the installer of the system.
var apt = installer{
	root:   os.Geteuid() == 0,
	policy: "/usr/sbin/policy-rc.d",
	lock:   filepath.Join(os.TempDir(), "dibs-apt.lock"),
}

// find returns the program's path. It installs a missing program if it may.
func (p *program) find() (string, error) {
	if path := p.look(); path != "" {
		return path, nil
	}
	return apt.install(p)
}

// look returns the program's path, or "".
func (p *program) look() string {
	if path := os.Getenv(p.env); p.env != "" && path != "" {
		return path
	}
	for _, name := range p.names {
		if path, err := exec.LookPath(name); err == nil && p.is(path) {
			return path
		}
		for _, place := range p.places {
			// The last is the newest, where the pattern is a version.
			found, err := filepath.Glob(filepath.Join(place, name))
			if err == nil && len(found) > 0 && p.is(found[len(found)-1]) {
				return found[len(found)-1]
			}
		}
	}
	return ""
}

// is reports whether a file with one of the names is the program.
func (p *program) is(path string) bool {
	if p.not == "" {
		return true
	}
	target, err := filepath.EvalSymlinks(path)
	return err == nil && filepath.Base(target) != p.not
}

// install installs the program's package, unless another process just did, and returns
// the program's path.
func (a installer) install(p *program) (string, error) {
	get, err := exec.LookPath("apt-get")
	if err != nil || !a.root {
		return "", fmt.Errorf("%s is missing: install it (on Debian: apt-get install %s)", p.names[0], p.pkg)
	}
	lock, err := os.OpenFile(a.lock, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // and so unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("locking %s: %w", a.lock, err)
	}
	if path := p.look(); path != "" {
		return path, nil
	}
	permit, err := forbidServices(a.policy)
	if err != nil {
		return "", err
	}
	defer permit()
	if err := p.prepare(); err != nil {
		return "", err
	}
	install := append([]string{"install", "-y", "--no-install-recommends", p.pkg}, p.with...)
	out, err := aptGet(get, install...)
	if err != nil {
		// The package lists may be old, or missing as in a new container.
		if out, err = aptGet(get, "update"); err == nil {
			out, err = aptGet(get, install...)
		}
	}
	if err != nil && p.backported {
		out, err = fromBackports(get, p.pkg)
	}
	if err != nil && p.unpacking != nil {
		out, err = fromUnstable(get, p.unpacking)
	}
	if err != nil {
		return "", fmt.Errorf("%s is missing, and apt-get install %s failed: %w\n%s", p.names[0], p.pkg, err, out)
	}
	if err := p.settle(); err != nil {
		return "", err
	}
	if path := p.look(); path != "" {
		return path, nil
	}
	return "", fmt.Errorf("the package %s is installed, but has no %s", p.pkg, strings.Join(p.names, " or "))
}

// prepare writes the settings that the package needs.
func (p *program) prepare() error {
	for path, text := range p.settings {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if os.IsExist(err) {
			continue // the system has its own
		}
		if err != nil {
			return err
		}
		_, err = file.WriteString(text)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settle disables the package's service.
func (p *program) settle() error {
	if p.service == "" {
		return nil
	}
	// update-rc.d covers systemd, too, but refuses a service that only systemd knows.
	disable := []string{"update-rc.d", p.service, "disable"}
	if _, err := os.Stat("/etc/init.d/" + p.service); err != nil {
		disable = []string{"systemctl", "disable", p.service}
	}
	path, err := exec.LookPath(disable[0])
	if err != nil {
		return nil
	}
	if out, err := exec.Command(path, disable[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("disabling the service of %s: %w\n%s", p.pkg, err, out)
	}
	return nil
}

// aptGet runs apt-get without questions and returns its output. It must not remove
// packages.
func aptGet(path string, args ...string) (string, error) {
	cmd := exec.Command(path, append([]string{"-q", "-o", "DPkg::Lock::Timeout=300", "-o", "APT::Get::Remove=false"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1")
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

// forbidServices keeps packages from starting their services, with Debian's policy file,
// until the returned function is called. It does not change an existing policy.
func forbidServices(policy string) (func(), error) {
	file, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if os.IsExist(err) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Chmod(policy, 0o755) // despite the umask
	}
	if err != nil {
		os.Remove(policy)
		return nil, err
	}
	return func() { os.Remove(policy) }, nil
}

// toolPrograms are needed by the race detector (a C compiler), the guides' commands (ps,
// curl), and the tests of the clients for Ruby, Python and JavaScript and of their examples.
var toolPrograms = []program{
	{names: []string{"gcc"}, pkg: "gcc"},
	{names: []string{"stdlib.h"}, places: []string{"/usr/include", "/usr/local/include"}, pkg: "libc6-dev"},
	{names: []string{"ps"}, pkg: "procps"},
	{names: []string{"curl"}, pkg: "curl"},
	{names: []string{"ruby"}, pkg: "ruby"},
	{names: []string{"minitest.rb"}, places: rubyLibraries("minitest"), pkg: "ruby-minitest"},
	{names: []string{"active_job.rb"}, places: rubyLibraries("activejob"), pkg: "ruby-activejob"},
	{names: []string{"rspec.rb"}, places: rubyLibraries("rspec"), pkg: "ruby-rspec"},
	{names: []string{"faraday.rb"}, places: rubyLibraries("faraday"), pkg: "ruby-faraday"},
	{names: []string{"active_record.rb"}, places: rubyLibraries("activerecord"), pkg: "ruby-activerecord"},
	{names: []string{"pg.rb"}, places: append(rubyLibraries("pg"), "/usr/lib/ruby/vendor_ruby"), pkg: "ruby-pg"},
	{names: []string{"python3"}, pkg: "python3"},
	{names: []string{"openssl"}, pkg: "openssl"},
	{names: []string{"psycopg/__init__.py"}, places: pythonLibraries, pkg: "python3-psycopg"},
	{names: []string{"node"}, pkg: "nodejs"},
}

// packagerPrograms make and install the packages of the clients. Only a release needs them.
var packagerPrograms = []program{
	{names: []string{"gem"}, pkg: "ruby"},
	{names: []string{"npm"}, pkg: "npm"},
	{names: []string{"pip/__init__.py"}, places: pythonLibraries, pkg: "python3-pip"},
	{names: []string{"ensurepip/__init__.py"}, places: []string{"/usr/lib/python3.*"}, pkg: "python3-venv"},
}

// railsPrograms run the recipes for Ruby.
var railsPrograms = []program{
	{names: []string{"rails.rb"}, places: rubyLibraries("railties"), pkg: "ruby-railties"},
	{names: []string{"webrick.rb"}, places: rubyLibraries("webrick"), pkg: "ruby-webrick"},
	{names: []string{"sidekiq"}, pkg: "ruby-sidekiq"},
	{names: []string{"active_job.rb"}, places: rubyLibraries("activejob"), pkg: "ruby-activejob"},
}

// pythonPrograms run the recipes for Python, check the types of its client, and send requests with a key.
var pythonPrograms = []program{
	{names: []string{"mypy"}, pkg: "mypy"},
	{names: []string{"pip/__init__.py"}, places: pythonLibraries, pkg: "python3-pip"},
	{names: []string{"ensurepip/__init__.py"}, places: []string{"/usr/lib/python3.*"}, pkg: "python3-venv"},
	{names: []string{"requests/__init__.py"}, places: pythonLibraries, pkg: "python3-requests"},
	{names: []string{"httpx/__init__.py"}, places: pythonLibraries, pkg: "python3-httpx"},
	{names: []string{"flask/__init__.py"}, places: pythonLibraries, pkg: "python3-flask"},
	{names: []string{"django/__init__.py"}, places: pythonLibraries, pkg: "python3-django"},
	{names: []string{"celery/__init__.py"}, places: pythonLibraries, pkg: "python3-celery"},
}

// pythonLibraries are the folders of Debian's packages for Python.
var pythonLibraries = []string{"/usr/lib/python3/dist-packages"}

// InstallPackagers installs the tools of Ruby, Python and JavaScript that make and install
// packages, if they are missing.
func InstallPackagers() error { return install(packagerPrograms) }

// InstallPython installs libraries for Python and a checker of its types, if they are missing.
func InstallPython() error { return install(pythonPrograms) }

// InstallRails installs Rails and Sidekiq, if they are missing.
func InstallRails() error { return install(railsPrograms) }

// Install installs Redis, PostgreSQL, MariaDB and the tools of the tests if they are
// missing. If a program cannot be installed, the error says what to do. Valkey, MySQL, Galera, Patroni,
// PgBouncer and gateways are installed by the nightly tests that need them.
func Install() error {
	if err := install(toolPrograms); err != nil {
		return err
	}
	for _, p := range []*program{&redisProgram, &postgresProgram, &mariadbProgram, &mariadbInstallProgram, &mariadbClientProgram} {
		if _, err := p.find(); err != nil {
			return err
		}
	}
	return nil
}

func install(all []program) error { return apt.installAll(all) }

// installAll installs the programs that are missing with one call of apt-get.
func (a installer) installAll(all []program) error {
	all = slices.DeleteFunc(slices.Clone(all), func(p program) bool { return p.look() != "" })
	for i, p := range all {
		for _, next := range all[i+1:] {
			p.with = append(p.with, next.pkg)
		}
		if _, err := a.install(&p); err != nil {
			return err
		}
	}
	return nil
}

// rubyLibraries returns the folders in which a gem's library may be.
func rubyLibraries(gem string) []string {
	return []string{
		"/usr/share/rubygems-integration/all/gems/" + gem + "-*/lib",
		"/var/lib/gems/*/gems/" + gem + "-*/lib",
		"/usr/lib*/ruby/gems/*/gems/" + gem + "-*/lib",
		"/usr/local/lib/ruby/gems/*/gems/" + gem + "-*/lib",
	}
}

// chromiumProgram is a browser. Only nightly tests need it.
var chromiumProgram = program{names: []string{"chromium", "chromium-browser"}, pkg: "chromium", env: "DIBS_CHROMIUM"}

// Chromium returns the path of a browser. It installs a missing one if it may.
func Chromium(t testing.TB) string {
	t.Helper()
	path, err := chromiumProgram.find()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
