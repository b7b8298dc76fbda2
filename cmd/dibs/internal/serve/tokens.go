package serve

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
)

// Role is what a credential may do.
type Role string

// The roles.
const (
	Use  Role = "use"  // claim, renew and settle with tokens of its own
	Look Role = "look" // list keys, and read metrics
	Act  Role = "act"  // release, settle and forget the keys of others
)

var roles = []Role{Use, Look, Act}

// credential is a line of the file of tokens.
type credential struct {
	name      string
	digest    [sha256.Size]byte
	namespace string
	roles     []Role
	free      bool // it may name any namespace: a listener that needs no credential
	load      *load
}

func (c *credential) may(r Role) bool { return slices.Contains(c.roles, r) }

// everybody is the credential where none is needed.
func everybody(namespace string) *credential {
	return &credential{name: "-", namespace: namespace, roles: roles, free: namespace == "", load: new(load)}
}

// readTokens reads a file of tokens. A line is "NAME DIGEST NAMESPACE ROLE[,ROLE]": the
// SHA-256 of the token in hexadecimal digits, and "-" for the namespace without a name. Empty
// lines and lines that begin with # do not count. No error quotes a line, because a token may
// be in it by mistake.
func readTokens(file string) ([]*credential, error) {
	// Looked at first, because opening a pipe waits for a writer.
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []*credential
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff"))
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseCredential(line)
		if err == nil && slices.ContainsFunc(all, func(o *credential) bool { return o.name == c.name || o.digest == c.digest }) {
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

func parseCredential(line string) (*credential, error) {
	columns := strings.Fields(line)
	if len(columns) != 4 {
		return nil, fmt.Errorf("it has %d columns; a line is NAME SHA256 NAMESPACE ROLE[,ROLE], with - for the namespace without a name", len(columns))
	}
	c := &credential{name: columns[0], namespace: columns[2], load: new(load)}
	if n, err := hex.Decode(c.digest[:], []byte(columns[1][:min(len(columns[1]), 2*sha256.Size)])); err != nil || n != sha256.Size || len(columns[1]) != 2*sha256.Size {
		return nil, errors.New("the second column must be the SHA-256 of the token, 64 hexadecimal digits: printf %s TOKEN | sha256sum")
	}
	if c.namespace == "-" {
		c.namespace = ""
	}
	if err := (dibs.Key{Namespace: c.namespace, Name: "-"}).Validate(); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(columns[3], ",") {
		if !slices.Contains(roles, Role(name)) {
			return nil, errors.New("a role is use, look or act; several are separated by commas")
		}
		c.roles = append(c.roles, Role(name))
	}
	return c, nil
}

// find returns the credential of a request, or nil. It takes as long for each token.
func find(all []*credential, r *http.Request) (found *credential) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	digest := sha256.Sum256([]byte(strings.TrimSpace(token)))
	for _, c := range all {
		if subtle.ConstantTimeCompare(c.digest[:], digest[:]) == 1 {
			found = c
		}
	}
	return found
}
