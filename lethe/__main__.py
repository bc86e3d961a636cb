from lethe.cli.main import main

main()
