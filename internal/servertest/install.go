//go:build unix

package servertest

// toolPrograms are what the tests use besides servers: the race detector a C compiler, the
// guides' commands ps and curl.
var toolPrograms = []program{
	{names: []string{"gcc"}, pkg: "gcc"},
	{names: []string{"stdlib.h"}, places: []string{"/usr/include", "/usr/local/include"}, pkg: "libc6-dev"},
	{names: []string{"ps"}, pkg: "procps"},
	{names: []string{"curl"}, pkg: "curl"},
}

// Install installs the programs of Redis, PostgreSQL and MariaDB, and the tools of the
// tests, where they are missing, as a test that asks for such a server does. What is
// missing and cannot be installed is an error that says what to do. Valkey, MySQL and
// PgBouncer are left to the nightly tests that ask for them.
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
