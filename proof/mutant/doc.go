// Package mutant has stores and clients that are broken on purpose, each in one way in
// which locks over databases really break. Whoever checks histories has to catch them:
// a checker that never says no proves nothing.
package mutant
