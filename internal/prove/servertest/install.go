//go:build unix

package servertest

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
	{names: []string{"setuptools/__init__.py"}, places: pythonLibraries, pkg: "python3-setuptools"},
	{names: []string{"wheel/__init__.py"}, places: pythonLibraries, pkg: "python3-wheel"},
	{names: []string{"ensurepip/__init__.py"}, places: []string{"/usr/lib/python3.*"}, pkg: "python3-venv"},
}

// pythonLibraries are the folders of Debian's packages for Python.
var pythonLibraries = []string{"/usr/lib/python3/dist-packages"}

// InstallPackagers installs the tools of Ruby, Python and JavaScript that make and install
// packages, if they are missing.
func InstallPackagers() error { return install(packagerPrograms) }

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

func install(all []program) error {
	for i := range all {
		if _, err := all[i].find(); err != nil {
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
