package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

func tokensCommand() *cobra.Command {
	o := &operatorFlags{}
	list := listSpec{path: operators.Path("tokens"), columns: newColumns("ID", "NAME", "ROLE", "POOLS", "LIMIT SETS", "CREATED=created_at", "EXPIRES=expires_at", "LAST USED=last_used_at", "REQUESTS")}
	verbs := o.newListCommands(list, "List operator tokens", func(c *cobra.Command) {
		c.Flags().String("order", "oldest", "newest or oldest first")
		completeFlagValues(c, "order", "newest", "oldest")
	})
	rotate := o.tokenCommands().objectCommand("rotate", "Replace the secret of an operator token and print the new one; all replicas refuse the older one within 5 s", func(s *session, id string) error {
		return s.printToken(operators.Request{Method: http.MethodPost, Path: operators.Path("tokens", id, "rotate")}, "dispatcher tokens rotate "+id)
	})
	verbs = append(verbs, createTokenCommand(o), rotate, o.tokenCommands().requestCommand("delete", "Revoke an operator token; all replicas refuse it within 5 s", http.MethodDelete, ""))
	return o.groupCommand("tokens", "Create and revoke operator tokens, including the first one", verbs...)
}

// tokenRoles returns the names of the roles that a token can have.
func tokenRoles() (names []string) {
	return []string{"viewer", "operator", "admin", "verifier", credentials.RoleCaller}
}

// createTokenCommand returns the command that creates a token. Usually the server creates the token. The command can also
// write the token into the ledger itself, which is the only way to create the first token. This gives an attacker no new
// power, because anyone with the password of the ledger can change everything in it.
func createTokenCommand(operator *operatorFlags) *cobra.Command {
	var t tokenFlags
	var ledgerSettings *configReader
	command := &cobra.Command{
		Use:   "create",
		Short: "Create an operator token and print it; it is never shown again",
		Long: `Create an operator token and print it; it is never shown again.

Without a URL, and with --config or DISPATCHER_POSTGRES_DSN, the token is created
in the Postgres database: the first token is created in this way. Otherwise the
server creates it, which requires a token with the role admin. If a context is in
use and DISPATCHER_POSTGRES_DSN is set, a flag must select one of the two.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if t.Name == "" || !slices.Contains(tokenRoles(), t.Role) || t.valid < 0 {
				return usageError{errors.New("--name is required, and --role must be one of " + strings.Join(tokenRoles(), ", "))}
			}
			if err := credentials.CheckToken(t.Token); err != nil {
				return usageError{err}
			}
			direct, err := operator.createsInDatabase(ledgerSettings)
			if err != nil {
				return err
			}
			if direct {
				return withLedger(cmd, ledgerSettings, t.createTokenInLedger)
			}
			return operator.withSession(func(s *session, _ []string) error {
				return s.printToken(t.newRequest(), "dispatcher tokens delete ID, and create another one")
			})(cmd, args)
		},
	}
	command.Flags().StringVar(&t.Name, "name", "", "operator or service that uses the token; the audit log contains this name")
	command.Flags().StringVar(&t.Role, "role", "", "role of the token: viewer, operator, admin, verifier or caller; required")
	command.Flags().StringArrayVar(&t.Pools, "pool", nil, "for --role caller: pool whose slots the token may lease, or a pattern such as ci-*; may be repeated")
	command.Flags().StringArrayVar(&t.LimitSets, "limit-set", nil, "for --role caller: limit set that the token may take from, or a pattern; may be repeated")
	command.Flags().DurationVar(&t.valid, "valid", 0, "how long the token is valid, e.g. 720h; 0: until it is revoked")
	completeFlagValues(command, "role", tokenRoles()...)
	operator.poolCommands().completeFlag(command, "pool")
	ledgerSettings = addConfigFlag(command.Flags())
	return command
}

// printToken sends request, which creates a token, and prints only the token. With JSON output, it prints the whole
// answer. advice has the same meaning as in createWithSecret.
func (s *session) printToken(request operators.Request, advice string) error {
	text, made, err := s.createWithSecret(request, advice)
	if err == nil && s.console.isJSON {
		return writeJSON(s.console.out, text, jsonIndent)
	}
	if err == nil {
		_, err = fmt.Fprintln(s.console.out, made.stringMember("token"))
	}
	return err
}

// createsInDatabase reports whether the command creates the token in the database. It returns an error if a context is in
// use and the environment also names a database, because the user must choose one of them.
func (o *operatorFlags) createsInDatabase(configuration *configReader) (inDatabase bool, err error) {
	if o.url != "" || o.context != "" || os.Getenv("DISPATCHER_URL") != "" {
		return false, nil
	}
	if configuration.file != "" {
		return true, nil
	}
	for _, name := range []string{"DISPATCHER_POSTGRES_DSN", "DISPATCHER_POSTGRES_DSN_FILE"} {
		if os.Getenv(name) == "" {
			continue
		}
		all, err := readContexts()
		if err == nil && all.Current != "" {
			err = advisedError{
				usageError{fmt.Errorf("the context %q is in use, and %s names a database: select where to create the token", all.Current, name)},
				fmt.Sprintf("at the server: --context %s; in the database: --config FILE, or first: dispatcher context use --none", all.Current),
			}
		}
		return true, err
	}
	return false, nil
}

// tokenFlags contains the fields of a new token.
type tokenFlags struct {
	store.Token

	valid time.Duration // if it is 0, the token does not expire
}

// newRequest returns the request that lets the server create the token.
func (t tokenFlags) newRequest() operators.Request {
	body := operators.NewToken{Name: t.Name, Role: t.Role, Pools: t.Pools, LimitSets: t.LimitSets}
	if t.valid > 0 {
		body.ExpiresAt = new(time.Now().Add(t.valid).UTC())
	}
	return operators.Request{Method: http.MethodPost, Path: operators.Path("tokens"), Key: newIdempotencyKey(), Body: body}
}

// createTokenInLedger creates the token in the ledger, without a server, and prints it.
func (t tokenFlags) createTokenInLedger(cmd *cobra.Command, ledger *store.Store) error {
	if t.valid > 0 {
		now, err := ledger.Clock(cmd.Context())
		if err != nil {
			return err
		}
		end := now.Add(t.valid)
		t.ExpiresAt = &end
	}
	if err := checkMigrated(cmd, ledger); err != nil {
		return err
	}
	secret := credentials.NewToken()
	hash := credentials.HashToken(secret)
	if _, err := ledger.CreateToken(cmd.Context(), "command line", t.Token, hash[:]); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), secret)
	return err
}

// checkMigrated returns an error with advice if migrations are missing.
func checkMigrated(cmd *cobra.Command, ledger *store.Store) error {
	states, err := ledger.MigrationStatus(cmd.Context())
	if err != nil {
		return err
	}
	for _, s := range states {
		if !s.Applied {
			return advisedError{errors.New("the database is not set up: migrations are missing"), "apply them: dispatcher migrate up; or start `dispatcher serve` once"}
		}
	}
	return nil
}
