package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/operators"
)

// devData is the default data folder of `dispatcher dev`.
const devData = ".dispatcher"

const (
	outputTable = "table"
	outputJSON  = "json"
)

// operatorFlags contains the values of the flags that all commands of the operators' API share: --url, --context and --output. Each group
// of commands has its own operatorFlags.
type operatorFlags struct{ url, context, output string }

// groupCommand returns a command of the API with the subcommands verbs. usageLine begins with the name of the command, and shortHelp
// is its help. The command and its subcommands have the flags of o. Without verbs, the caller sets RunE.
func (o *operatorFlags) groupCommand(usageLine, shortHelp string, verbs ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{Use: usageLine, Short: shortHelp, GroupID: groupOperate}
	command.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	command.AddCommand(verbs...)
	flags := command.PersistentFlags()
	flags.StringVar(&o.url, "url", "", "URL of the dispatcher (DISPATCHER_URL; default: the dispatcher dev that runs here)")
	flags.StringVar(&o.context, "context", "", "name of the installation to use; see dispatcher context")
	command.MarkFlagsMutuallyExclusive("url", "context")
	completeContexts(command, "context")
	addOutputFlag(command, flags, &o.output)
	return command
}

// addOutputFlag adds the flag --output to flags, a set of flags of command.
func addOutputFlag(command *cobra.Command, flags *pflag.FlagSet, output *string) {
	flags.StringVarP(output, "output", "o", outputTable, "table: for people; json: for scripts")
	completeFlagValues(command, "output", outputTable, outputJSON)
}

// checkOutput returns an error if output is not a value of the flag --output.
func checkOutput(output string) error {
	if output != outputTable && output != outputJSON {
		return usageError{fmt.Errorf("--output: %q is neither table nor json", output)}
	}
	return nil
}

// session is a running command with its connection to the dispatcher.
type session struct {
	*operators.Client
	cmd     *cobra.Command
	console *console
}

// withSession returns a function for cobra that opens a session and calls run with the session and the arguments of the
// command.
func (o *operatorFlags) withSession(run func(s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(o.output); err != nil {
			return err
		}
		c := &console{in: cmd.InOrStdin(), out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), isJSON: o.output == outputJSON}
		client, err := o.newClient(c)
		if err != nil {
			return err
		}
		return run(&session{client, cmd, c}, args)
	}
}

// newClient returns a client for the server that withServerAndToken selects. It sends no request. If c is not nil, it writes
// a warning to c if others on the network can read the token. The client also writes a message to c each time before it
// sends a request again.
func (o *operatorFlags) newClient(c *console) (*operators.Client, error) {
	config, err := o.withServerAndToken(operators.Config{Agent: "dispatcher/" + version})
	if err != nil {
		return nil, err
	}
	if c != nil {
		config.OnRetry = func(err error, wait time.Duration) { c.writeMessage("%v; retrying in %s", err, wait) }
		if config.Token != "" {
			c.warnOfPlainHTTP(config.URL)
		}
	}
	client, err := operators.New(config)
	if err != nil {
		return nil, usageError{fmt.Errorf("--url, DISPATCHER_URL: %w", err)}
	}
	return client, nil
}

// warnOfPlainHTTP writes a warning if others on the network can read a token that is sent to address. This is the case if
// address begins with http:// and is not a loopback address.
func (c *console) warnOfPlainHTTP(address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" {
		return
	}
	if host, err := netip.ParseAddr(u.Hostname()); u.Hostname() != "localhost" && (err != nil || !host.Unmap().IsLoopback()) {
		c.writeMessage("Warning: the token is sent to %s without encryption; use https://", u.Host)
	}
}

// withServerAndToken returns config with the URL and the token of the server. The server is the first one given in this order: --url, --context,
// DISPATCHER_URL, the context in use, the running `dispatcher dev`. A token from the environment is sent only to the server of --url
// or DISPATCHER_URL.
func (o *operatorFlags) withServerAndToken(config operators.Config) (operators.Config, error) {
	config.URL = o.url
	if config.URL == "" && o.context == "" {
		config.URL = os.Getenv("DISPATCHER_URL")
	}
	if config.URL != "" {
		token, err := tokenFromEnv()
		config.Token = token
		return config, err
	}
	all, err := readContexts()
	if err != nil {
		return config, err
	}
	name := cmp.Or(o.context, all.Current)
	if name == "" {
		return localDevConfig(config)
	}
	found, err := all.findInstallation(name)
	if err != nil {
		return config, err
	}
	return found.applyTo(config)
}

// localDevConfig returns config with the URL and the token of the `dispatcher dev` that runs here.
func localDevConfig(config operators.Config) (withDevServer operators.Config, err error) {
	server, err := findDevServer("")
	config.URL, config.Token = server.URL, server.Token
	return config, err
}

// findDevServer returns the `dispatcher dev` with the data folder dataFolder. If dataFolder is empty, it returns the one of the current
// folder, else the one of this user.
func findDevServer(dataFolder string) (localdev.Server, error) {
	if dataFolder != "" {
		return localdev.Find(dataFolder)
	}
	dirs := []string{devData}
	if state, err := localdev.StateDir(); err == nil {
		dirs = append(dirs, state)
	}
	return localdev.Find(dirs...)
}

// tokenFromEnv returns DISPATCHER_TOKEN, or the content of the file that DISPATCHER_TOKEN_FILE names.
// There is no flag for the token, because other users of the machine can read a command line.
func tokenFromEnv() (token string, err error) {
	token, file := os.Getenv("DISPATCHER_TOKEN"), os.Getenv("DISPATCHER_TOKEN_FILE")
	if token != "" && file != "" {
		return "", usageError{errors.New("DISPATCHER_TOKEN: set both as a value and as a file")}
	}
	if file == "" {
		return strings.TrimSpace(token), nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", usageError{fmt.Errorf("DISPATCHER_TOKEN_FILE: %w", err)}
	}
	return strings.TrimSpace(string(content)), nil
}

// getAndShow reads the object at a path. With --output json it writes the response of the server,
// indented. Otherwise it decodes the response into answer, and calls writeText to write it.
func (s *session) getAndShow(path string, query url.Values, answer any, writeText func() error) error {
	text, err := s.Get(s.cmd.Context(), path, query)
	if err != nil {
		return err
	}
	if s.console.isJSON {
		return writeJSON(s.console.out, text, jsonIndent)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return err
	}
	return writeText()
}

// showTable reads the object at a path. It shows as one table the entries of all members whose names are in listNames.
func (s *session) showTable(path string, query url.Values, columns []tableColumn, listNames ...string) error {
	var answer map[string]json.RawMessage
	return s.getAndShow(path, query, &answer, func() error {
		var entries []jsonObject
		for _, name := range listNames {
			var part []jsonObject
			_ = json.Unmarshal(answer[name], &part) // an absent list has no entries
			entries = append(entries, part...)
		}
		return writeTable(s.console.out, entries, columns)
	})
}

// readAnswer sends request, decodes the response into answer, and returns the response as received.
func readAnswer(ctx context.Context, client *operators.Client, request operators.Request, answer any) (json.RawMessage, error) {
	text, err := client.Call(ctx, request)
	if err == nil {
		err = json.Unmarshal(text, answer)
	}
	return text, err
}

// sendAndShow sends request, writes the warnings in the response as messages, and shows the other members of the response, except
// those in omittedMembers. If the response has no body, it shows nothing.
func (s *session) sendAndShow(request operators.Request, omittedMembers ...string) error {
	object, err := s.Call(s.cmd.Context(), request)
	if err != nil || object == nil {
		return err
	}
	return s.console.showWithWarnings(object, omittedMembers...)
}

// sendFlags sends a request whose body has the fields for which flags were given, and shows the answer.
func (s *session) sendFlags(method, path string) error {
	body, err := requestBody(s.cmd.LocalNonPersistentFlags())
	if err != nil {
		return err
	}
	return s.sendAndShow(operators.Request{Method: method, Path: path, Body: body})
}

// showValue shows value, a decoded response, in the same form in which sendAndShow shows a response.
func (s *session) showValue(value any, omittedMembers ...string) error {
	object, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return s.console.showWithWarnings(object, omittedMembers...)
}

// createWithSecret sends request, which creates a token, and returns the answer, both as received and decoded. The answer
// to a repeated request contains no token. In this case the error contains advice: how to get another token.
func (s *session) createWithSecret(request operators.Request, advice string) (answer json.RawMessage, decoded jsonObject, err error) {
	var made jsonObject
	text, err := readAnswer(s.cmd.Context(), s.Client, request, &made)
	if err == nil && made.stringMember("token") == "" {
		err = advisedError{errors.New("it was created, but the response with its token was lost"), advice}
	}
	return text, made, err
}

// countText returns n with the word for it, such as "1 task" or "2 tasks": singular for 1, else plural.
func countText(n int64, singular, plural string) string {
	if n == 1 {
		plural = singular
	}
	return fmt.Sprintf("%d %s", n, plural)
}

// addYesFlag adds the flag --yes, which sets isConfirmed: then confirm does not ask.
func addYesFlag(command *cobra.Command, isConfirmed *bool) {
	command.Flags().BoolVarP(isConfirmed, "yes", "y", false, "do not ask for confirmation")
}

// requireFlag makes a flag of the command required, and returns the command.
func requireFlag(command *cobra.Command, flagName string) *cobra.Command {
	_ = command.MarkFlagRequired(flagName) // fails only for a flag that does not exist, which a test would detect
	return command
}
