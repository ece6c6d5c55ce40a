package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/doctor"
	"github.com/fleetslots/dispatcher/internal/localdev"
	"github.com/fleetslots/dispatcher/internal/terminal"
)

// devDiskBytes is the recommended free space, in bytes, for the data folder of `dispatcher dev`.
const devDiskBytes = 1 << 30

// doctorFlags contains the flags of the command doctor.
type doctorFlags struct {
	settings             *configReader
	output, data, device string
	token                tokenFlag
}

func doctorCommand() *cobra.Command {
	e := &doctorFlags{}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check the settings and the servers of an installation, and suggest repairs",
		Long: `Check the settings and the servers of an installation, and suggest repairs.

It reads the same settings as serve, and opens its own connections to Postgres, to Redis
and to the broker. It changes nothing. Each line is ok, warning, failed, or unknown if it
cannot be checked from here. In an environment without servers it checks the dispatcher dev
that runs here.

With --device, the id of a device that is not in use, it checks at the broker whether a
device receives messages to another device. The device is woken once.

Exit status 1 if a check failed, else 0.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return e.examineAndReport(cmd) },
	}
	e.settings = addConfigFlag(command.Flags())
	addSettingFlags(command.Flags())
	addOutputFlag(command, command.Flags(), &e.output)
	command.Flags().StringVar(&e.data, "data", "", "data folder of the dispatcher dev to check (default: the folder of the dispatcher dev that runs here)")
	command.Flags().StringVar(&e.device, "device", "", "id of a device whose account at the broker is used for a check")
	command.Flags().Var(&e.token, "device-token-file", "file that contains the token of --device")
	command.MarkFlagsRequiredTogether("device", "device-token-file")
	return command
}

// examineAndReport examines the installation and writes the findings. It returns an error if the state of a finding is Failed.
func (e *doctorFlags) examineAndReport(cmd *cobra.Command) error {
	if err := checkOutput(e.output); err != nil {
		return err
	}
	p := doctor.Installation{Version: version, Now: time.Now, Device: e.device, DeviceToken: e.token.String()}
	findings := e.runChecks(cmd, p)
	if err := e.writeFindings(cmd, findings); err != nil {
		return err
	}
	if n := doctor.CountInState(findings, doctor.Failed); n > 0 {
		return errors.New(countText(int64(n), "check failed", "checks failed"))
	}
	return nil
}

func (e *doctorFlags) runChecks(cmd *cobra.Command, installation doctor.Installation) []doctor.Finding {
	config, configErr := e.settings.loadConfig(cmd.Flags())
	if configErr != nil {
		return []doctor.Finding{doctor.Misconfigured(configErr)}
	}
	if config.PostgresDSN == "" && config.RedisURL == "" {
		dev, err := findDevServer(e.data)
		switch {
		case err == nil:
			return e.examineDev(cmd, dev)
		case e.data != "":
			return []doctor.Finding{{Check: "dev", State: doctor.Failed, Found: fmt.Sprintf("%s: %v", e.data, err), Remedy: "start it: dispatcher dev --data " + e.data}}
		}
	}
	app.SetRedisLog(newLogger(cmd.ErrOrStderr(), "text", "error"))
	installation.Config = config
	return installation.Examine(cmd.Context())
}

// examineDev examines the process `dispatcher dev` on this machine. It does not check a database or a broker, because
// both are part of this process.
func (e *doctorFlags) examineDev(cmd *cobra.Command, server localdev.Server) []doctor.Finding {
	ready := doctor.Finding{Check: "dev", State: doctor.OK, Found: "ready"}
	if err := checkReady(cmd.Context(), server.URL, nil); err != nil {
		ready = doctor.Finding{Check: "dev", State: doctor.Failed, Found: err.Error(), Remedy: "read its log, and start it again"}
	}
	return []doctor.Finding{
		{Check: "settings", State: doctor.OK, Found: "none: checking the dispatcher dev that runs here, at " + server.URL},
		ready, doctor.CheckDisk("disk of dev", server.DataDir, devDiskBytes),
	}
}

// writeFindings writes findings as a table, or as JSON with --output json.
func (e *doctorFlags) writeFindings(cmd *cobra.Command, findings []doctor.Finding) error {
	out := cmd.OutOrStdout()
	if e.output == outputJSON {
		return writeJSON(out, findings, jsonIndent)
	}
	t := terminal.NewTable(out, "STATE", "CHECK", "FOUND")
	for _, f := range findings {
		t.AddRow(string(f.State), f.Check, f.Found)
		if f.Remedy != "" {
			t.AddRow("", "", "-> "+f.Remedy)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var counts []string
	for _, state := range []doctor.State{doctor.OK, doctor.Warning, doctor.Failed, doctor.Unknown} {
		if n := doctor.CountInState(findings, state); n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), strings.Join(counts, ", "))
	return err
}
