//go:build unix

package servertest

// toolPrograms are needed by the race detector (a C compiler) and the guides' commands
// (ps, curl).
var toolPrograms = []program{
	{names: []string{"gcc"}, pkg: "gcc"},
	{names: []string{"stdlib.h"}, places: []string{"/usr/include", "/usr/local/include"}, pkg: "libc6-dev"},
	{names: []string{"ps"}, pkg: "procps"},
	{names: []string{"curl"}, pkg: "curl"},
}

// Install installs Redis, PostgreSQL, MariaDB and the tools of the tests if they are
// missing. If a program cannot be installed, the error says what to do. Valkey, MySQL and
// PgBouncer are installed by the nightly tests that need them.
func Install() error {
	for i := range toolPrograms {
		if _, err := toolPrograms[i].find(); err != nil {
			return err
		}
	}
	for _, p := range []*program{&redisProgram, &postgresProgram, &mariadbProgram, &mariadbInstallProgram, &mariadbClientProgram} {
		if _, err := p.find(); err != nil {
			return err
		}
	}
	return nil
}
