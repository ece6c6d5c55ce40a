package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// installationContexts contains the named installations of a user. They are stored in a file that only this user can read.
type installationContexts struct {
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]installation `json:"contexts"`
}

// installation is the address of a dispatcher and the file with the token for it.
type installation struct {
	URL       string `json:"url"`
	TokenFile string `json:"token_file,omitempty"`
}

// contextsFile returns the path of the file with the contexts (the named installations) of this user.
func contextsFile() (path string, err error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "dispatcher", "contexts.json"), nil
}

// readContexts reads the file of the contexts. If there is no file, it returns no contexts.
func readContexts() (read installationContexts, err error) {
	read.Contexts = map[string]installation{}
	path, err := contextsFile()
	if err != nil {
		return read, nil //nolint:nilerr // a user without a home directory has no contexts
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return read, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &read)
	}
	if err != nil {
		return read, fmt.Errorf("reading the contexts in %s: %w", path, err)
	}
	if read.Contexts == nil { // "contexts": null
		read.Contexts = map[string]installation{}
	}
	return read, nil
}

// writeFile writes the contexts to their file. It replaces the file only after the new content is complete.
func (c installationContexts) writeFile() error {
	path, err := contextsFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".contexts-*.json") // with mode 0600; concurrent commands need different files
	if err != nil {
		return err
	}
	_, err = f.Write(append(content, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func (c installationContexts) findInstallation(name string) (installation, error) {
	found, ok := c.Contexts[name]
	if !ok {
		return found, advisedError{usageError{fmt.Errorf("no context %q", name)}, "to list the contexts: dispatcher context list"}
	}
	return found, nil
}

// applyTo returns config with the URL and the token of the installation. It reads the token from the file at each call,
// because the token may have been replaced.
func (i installation) applyTo(config operators.Config) (operators.Config, error) {
	config.URL = i.URL
	if i.TokenFile == "" {
		return config, nil
	}
	content, err := os.ReadFile(i.TokenFile)
	if err != nil {
		return config, fmt.Errorf("reading the token of the context: %w", err)
	}
	config.Token = strings.TrimSpace(string(content))
	return config, nil
}

func contextCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "context", Short: "Name installations, and select the one that commands use", GroupID: groupOperate,
		Long: `Name installations, and select the one that commands use:

  dispatcher context add field --url https://dispatcher.example --token-file ~/.field-token
  dispatcher context use field
  dispatcher pools list
  dispatcher pools list --context another

A command uses the first of: --url, --context, DISPATCHER_URL, the context in use, the
dispatcher dev that runs here. The token of a context is read from its file;
DISPATCHER_TOKEN is sent only to --url and DISPATCHER_URL.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var added installation
	add := changeContextsCommand("add NAME", "Add an installation under a name, or change its URL and token file", cobra.ExactArgs(1), func(all *installationContexts, args []string) error {
		u, err := url.Parse(added.URL)
		if err != nil || u.Host == "" || u.User != nil {
			return usageError{errors.New("--url: must begin with http:// or https://, without a password")}
		}
		if added.TokenFile != "" {
			if added.TokenFile, err = filepath.Abs(added.TokenFile); err != nil {
				return err
			}
		}
		all.Contexts[args[0]] = added
		return nil
	})
	add.Flags().StringVar(&added.URL, "url", "", "URL of the dispatcher")
	add.Flags().StringVar(&added.TokenFile, "token-file", "", "file that holds the token; only you should be able to read it")
	none := false
	use := changeContextsCommand("use [NAME]", "Select the installation that commands use", cobra.MaximumNArgs(1), func(all *installationContexts, args []string) error {
		if none == (len(args) > 0) {
			return usageError{errors.New("give either a name or --none")}
		}
		if all.Current = ""; none {
			return nil
		}
		all.Current = args[0]
		_, err := all.findInstallation(args[0])
		return err
	})
	use.Flags().BoolVar(&none, "none", false, "let commands use no context")
	remove := changeContextsCommand("delete NAME", "Remove an installation from the list", cobra.ExactArgs(1), func(all *installationContexts, args []string) error {
		if all.Current == args[0] {
			all.Current = ""
		}
		_, err := all.findInstallation(args[0])
		delete(all.Contexts, args[0])
		return err
	})
	command.AddCommand(requireFlag(add, "url"), use, listContextsCommand(), remove)
	return command
}

// changeContextsCommand returns a command that reads the contexts from their file, passes the contexts and its arguments
// to change, and writes the contexts back.
func changeContextsCommand(usageLine, shortHelp string, args cobra.PositionalArgs, change func(all *installationContexts, args []string) error) *cobra.Command {
	return &cobra.Command{Use: usageLine, Short: shortHelp, Args: args, RunE: func(_ *cobra.Command, args []string) error {
		all, err := readContexts()
		if err == nil {
			err = change(&all, args)
		}
		if err != nil {
			return err
		}
		return all.writeFile()
	}}
}

func listContextsCommand() *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List the installations; * marks the one in use", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		all, err := readContexts()
		if err != nil {
			return err
		}
		t := terminal.NewTable(cmd.OutOrStdout(), "USE", "NAME", "URL", "TOKEN FILE")
		for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
			mark := ""
			if name == all.Current {
				mark = "*"
			}
			t.AddRow(mark, name, all.Contexts[name].URL, all.Contexts[name].TokenFile)
		}
		return t.Flush()
	}}
}

func completeContexts(command *cobra.Command, flagName string) {
	_ = command.RegisterFlagCompletionFunc(flagName, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		all, _ := readContexts() // errors are not shown, because the shell waits for the completion
		return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
	})
}
