package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/doctor"
	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/internal/terminal"
)

// devNeeds is the recommended free space, in bytes, for the data folder of dispatcher dev.
const devNeeds = 1 << 30

// examination contains the flags of the command doctor.
type examination struct {
	settings          *settings
	output, data      string
	device, tokenFile string
}

func newDoctor() *cobra.Command {
	e := &examination{}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Examine the settings and the servers of an installation, and say how to mend them",
		Long: `Examine the settings and the servers of an installation, and say how to mend them.

It reads the same settings as serve, and connects by itself: to Postgres, to Redis and
to the broker. It changes nothing. Each line is ok, warning, failed, or unknown where it
cannot be told from here. In an environment without servers it examines the dispatcher dev
that runs here.

With --device, an account of a device that is not in use, it tries at the broker whether a
device reads what is sent to another; the device is woken once.

Exit status 1 when something failed, else 0.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd) },
	}
	e.settings = addSettings(command.Flags())
	addSettingFlags(command.Flags())
	command.Flags().StringVarP(&e.output, "output", "o", outputTable, "table: for people; json: for scripts")
	complete(command, "output", outputTable, outputJSON)
	command.Flags().StringVar(&e.data, "data", "", "data folder of the dispatcher dev to examine (default: that of the dispatcher dev that runs here)")
	command.Flags().StringVar(&e.device, "device", "", "a device whose account at the broker is tried")
	command.Flags().StringVar(&e.tokenFile, "device-token-file", "", "file that holds its token")
	command.MarkFlagsRequiredTogether("device", "device-token-file")
	return command
}

func (e *examination) run(cmd *cobra.Command) error {
	if e.output != outputTable && e.output != outputJSON {
		return usageError{fmt.Errorf("--output: %q is neither table nor json", e.output)}
	}
	p := doctor.Patient{Version: version, Now: time.Now, Device: e.device}
	if e.tokenFile != "" {
		content, err := os.ReadFile(e.tokenFile)
		if err != nil {
			return usageError{fmt.Errorf("--device-token-file: %w", err)}
		}
		p.DeviceToken = strings.TrimSpace(string(content))
	}
	list := e.examine(cmd, p)
	if err := e.write(cmd, list); err != nil {
		return err
	}
	if n := doctor.Count(list, doctor.Failed); n > 0 {
		return errors.New(counted(int64(n), "check failed", "checks failed"))
	}
	return nil
}

func (e *examination) examine(cmd *cobra.Command, p doctor.Patient) []doctor.Finding {
	config, wrong := e.settings.load(cmd.Flags())
	if wrong != nil {
		return []doctor.Finding{doctor.Misconfigured(wrong)}
	}
	if config.PostgresDSN == "" && config.RedisURL == "" {
		dev, err := runningDev(e.data)
		switch {
		case err == nil:
			return e.dev(cmd, dev)
		case e.data != "":
			return []doctor.Finding{{Check: "dev", State: doctor.Failed, Found: fmt.Sprintf("%s: %v", e.data, err), Remedy: "start it: dispatcher dev --data " + e.data}}
		}
	}
	app.LogRedis(newLogger(cmd.ErrOrStderr(), "text", "error"))
	p.Config = config
	return p.Examine(cmd.Context())
}

// dev examines the dispatcher dev that runs here. Its servers are part of its process.
func (e *examination) dev(cmd *cobra.Command, dev localdev.Server) []doctor.Finding {
	list := []doctor.Finding{{Check: "settings", State: doctor.OK, Found: "none: the dispatcher dev that runs here, at " + dev.URL}}
	ready := doctor.Finding{Check: "dev", State: doctor.OK, Found: "ready"}
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, dev.URL+"/readyz", nil)
	if err == nil {
		var response *http.Response
		if response, err = (&http.Client{Timeout: 3 * time.Second}).Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				err = fmt.Errorf("not ready: HTTP %d", response.StatusCode)
			}
		}
	}
	if err != nil {
		ready = doctor.Finding{Check: "dev", State: doctor.Failed, Found: err.Error(), Remedy: "look at its log, and start it again"}
	}
	return append(list, ready, doctor.Disk("disk of dev", dev.Data, devNeeds))
}

func (e *examination) write(cmd *cobra.Command, list []doctor.Finding) error {
	out := cmd.OutOrStdout()
	if e.output == outputJSON {
		return writeJSON(out, list, jsonIndent)
	}
	t := terminal.NewTable(out, "STATE", "CHECK", "FOUND")
	for _, f := range list {
		t.Row(string(f.State), f.Check, f.Found)
		if f.Remedy != "" {
			t.Row("", "", "-> "+f.Remedy)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", cmp.Or(summary(list), "Nothing was examined."))
	return err
}

// summary returns the number of findings per state as text.
func summary(list []doctor.Finding) string {
	var parts []string
	for _, state := range []doctor.State{doctor.OK, doctor.Warning, doctor.Failed, doctor.Unknown} {
		if n := doctor.Count(list, state); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}
