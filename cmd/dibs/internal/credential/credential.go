// Package credential is the file of tokens, and what each may do.
package credential

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/missing"
)

// Role is what a credential may do.
type Role string

// The roles.
const (
	Use  Role = "use"  // claim, renew and settle with tokens of its own
	Look Role = "look" // list keys, and read metrics
	Act  Role = "act"  // release, settle and forget the keys of others
)

// All are all roles.
var All = []Role{Use, Look, Act}

// Credential is a line of the file of tokens.
type Credential struct {
	Name      string
	Namespace string
	Free      bool // it may name any namespace; a call that names none is for Namespace
	Roles     []Role

	digest [sha256.Size]byte
}

// May reports whether the credential has the role.
func (c *Credential) May(r Role) bool { return slices.Contains(c.Roles, r) }

// Read reads a file of tokens. A line is "NAME DIGEST NAMESPACE ROLE[,ROLE]": the
// SHA-256 of the token in hexadecimal digits, and "-" for the namespace without a name or "*" for
// every namespace. Empty lines and lines that begin with # do not count. The digest of the empty
// text is refused. No error quotes a line, because a token may be in it by mistake.
func Read(file string) ([]*Credential, error) {
	// Looked at first, because opening a pipe waits for a writer.
	info, err := os.Stat(file)
	if err != nil {
		return nil, missing.File(err, file, `echo "NAME $(printf %s TOKEN | sha256sum | cut -c 1-64) - use,look" >FILE`)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []*Credential
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff"))
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parse(line)
		if err == nil && slices.ContainsFunc(all, func(o *Credential) bool { return o.Name == c.Name || o.digest == c.digest }) {
			err = errors.New("its name or its digest is that of an earlier line")
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, n, err)
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no token; a line is NAME SHA256 NAMESPACE ROLE[,ROLE]", file)
	}
	return all, nil
}

func parse(line string) (*Credential, error) {
	columns := strings.Fields(line)
	if len(columns) != 4 {
		return nil, fmt.Errorf("it has %d columns; a line is NAME SHA256 NAMESPACE ROLE[,ROLE], with - for the namespace without a name and * for every namespace", len(columns))
	}
	c := &Credential{Name: columns[0], Namespace: columns[2]}
	if n, err := hex.Decode(c.digest[:], []byte(columns[1][:min(len(columns[1]), 2*sha256.Size)])); err != nil || n != sha256.Size || len(columns[1]) != 2*sha256.Size {
		return nil, errors.New("the second column must be the SHA-256 of the token, 64 hexadecimal digits: printf %s TOKEN | sha256sum")
	}
	if c.digest == sha256.Sum256(nil) {
		return nil, errors.New("the second column is the SHA-256 of no text at all: the token was empty when it was made")
	}
	if c.Free = c.Namespace == "*"; c.Free || c.Namespace == "-" {
		c.Namespace = ""
	}
	if err := (dibs.Key{Namespace: c.Namespace, Name: "-"}).Validate(); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(columns[3], ",") {
		if !slices.Contains(All, Role(name)) {
			return nil, errors.New("a role is use, look or act; several are separated by commas")
		}
		c.Roles = append(c.Roles, Role(name))
	}
	return c, nil
}

// Only returns the one namespace that the credential is for; nil: any.
func (c *Credential) Only() *string {
	if c.Free {
		return nil
	}
	return &c.Namespace
}

// Find returns the credential of a token, or nil. It takes as long for each token. The empty token
// is nobody's.
func Find(all []*Credential, token string) *Credential {
	if token == "" {
		return nil
	}
	digest := sha256.Sum256([]byte(token))
	return find(all, func(c *Credential) bool { return subtle.ConstantTimeCompare(c.digest[:], digest[:]) == 1 })
}

// find returns the credential that is the one, or nil. It asks for all, so that it takes as long for each.
func find(all []*Credential, is func(*Credential) bool) (found *Credential) {
	for _, c := range all {
		if is(c) {
			found = c
		}
	}
	return found
}
