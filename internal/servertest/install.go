//go:build unix

package servertest

// Install installs the programs of Redis, PostgreSQL and MariaDB where they are
// missing, as a test that asks for such a server does. What is missing and cannot
// be installed is an error that says what to do. Valkey, MySQL and PgBouncer are
// left to the nightly tests that ask for them.
func Install() error {
	for _, p := range []*program{&redisProgram, &postgresProgram, &mariadbProgram, &mariadbInstallProgram, &mariadbClientProgram} {
		if _, err := p.find(); err != nil {
			return err
		}
	}
	return nil
}
