#compdef kvplan

_kvplan_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _KVPLAN_COMPLETE=complete_zsh kvplan)
}

compdef _kvplan_completion kvplan
